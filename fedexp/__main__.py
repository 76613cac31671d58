"""`python -m fedexp`."""

import sys

from fedexp.main import main

if __name__ == "__main__":
    sys.argv[0] = "fedexp"  # the command that installing puts beside python: the one that shells can complete
    main()
