"""Many runs of one command line: tables, products of swept values, how far they are."""

from fedexp import make_callable

make_callable(__name__)
