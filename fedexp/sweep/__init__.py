"""Many runs from one command line: tables, products of swept values, and their progress."""

from fedexp import make_callable

make_callable(__name__)
