"""What failing disks, torn writes and stray hands do to files."""

from pathlib import Path
from random import Random

PAGE = 4096


def damage(path: Path, draw: Random) -> str:
    """Flip a bit, zero a page or cut the end off, at a random place; says what. The file is another one afterwards."""
    whole = path.read_bytes()
    while True:
        kind, at = draw.choice(["bit", "page", "cut"]), draw.randrange(len(whole))
        if kind == "bit":
            spoilt = whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :]
        elif kind == "page":
            at -= at % PAGE
            spoilt = whole[:at] + bytes(len(whole[at : at + PAGE])) + whole[at + PAGE :]
        else:
            spoilt = whole[:at]
        if spoilt != whole:
            path.write_bytes(spoilt)
            return f"{kind} at byte {at} of {len(whole)}"
