"""`python -m fedexp.report`: the same as `python -m fedexp report`."""

import sys

from fedexp.cli import carry_out

if __name__ == "__main__":
    sys.exit(carry_out("report", sys.argv[1:]))
