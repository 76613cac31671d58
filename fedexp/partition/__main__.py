"""`python -m fedexp.partition`: the same as `python -m fedexp partition`."""

import sys

from fedexp.cli import carry_out

if __name__ == "__main__":
    sys.exit(carry_out("partition", sys.argv[1:]))
