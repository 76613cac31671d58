"""Run the pinned cases and print what differs from golden.csv.

python -m tests.golden [--write] [WORD ...]

From the root of a checkout. Says for each case which quantities changed (old value -> new value, relative change), were
added or are gone; exit code 1 if any, else 0. --write puts the new values into golden.csv. WORDs choose the cases whose
names hold one of them (algorithm=fedconcat, paper=cadis); the others keep their values.

Where a change is meant to change numbers, run it with --write, and say in the commit which changed, and why.
"""

import sys

import torch

from .cases import CASES
from .pinned import differences, numbers, read, write


def main(arguments: list[str]) -> int:
    """What the module's docstring says; the exit code."""
    words = [word for word in arguments if word != "--write"]
    chosen = [name for name in CASES if not words or any(word in name for word in words)]
    if not chosen:
        print(__doc__)
        return 2
    torch.set_num_threads(1)  # these models are so small that threads would only wait for each other
    old, new, differing = read(), {}, 0
    for name in CASES:
        new[name] = old.get(name, {})
        if name in chosen:
            found = numbers(CASES[name])
            changed = differences(new[name], found)
            new[name] = {each: value if each in changed else new[name][each] for each, value in found.items()}
            differing += _say(name, changed)
    for name in old.keys() - CASES.keys():
        differing += _say(name, {"this case": "is gone"})
    print(f"{differing} of {len(chosen)} cases differ from golden.csv")
    if "--write" in arguments:
        write(new)
    return int(differing > 0)


def _say(name: str, changed: dict[str, str]) -> bool:
    if changed:
        print(name, *(f"    {quantity}: {how}" for quantity, how in changed.items()), sep="\n", flush=True)
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
