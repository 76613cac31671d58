"""Values that never change once they are made."""

from dataclasses import FrozenInstanceError
from typing import Any


class Frozen:
    """Base of frozen dataclasses whose subclasses are frozen too, even those that are not dataclasses themselves.

    An attribute that one process sets is not seen by another one: with two workers it would be lost.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to {name!r}: {type(self).__name__} holds settings that never change")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete {name!r}: {type(self).__name__} holds settings that never change")
