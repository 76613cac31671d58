"""What YAML files of conf/ can compute: `${choose:...}`, `${called:...}` and `${required:...}`."""

from typing import Any

from omegaconf import OmegaConf


def choose(value: Any, table: dict[Any, Any], *otherwise: Any) -> Any:
    """`${choose:${dataset.name},{fmnist:204},231}` in a YAML file: a constant that depends on another choice.

    Without a last value, a choice that the table lacks is an error.
    """
    if value not in table and not otherwise:
        known = ", ".join(map(str, table))
        raise ValueError(f"there is no value for {value}, only for {known}; give this key yourself")
    return table.get(value, *otherwise)


def called(target: str | None) -> str:
    """`${called:${._target_}}`: the name of the user's own class or function, given as package.module.name."""
    return str(target or "own").rsplit(".", 1)[-1]


def required(reason: str) -> Any:
    """`${required:the paper gives it for its own data sets only}`: a key that another file or the user must give."""
    raise ValueError(f"must be given: {reason}")


def register() -> None:
    """Make them known to OmegaConf."""
    for resolver in (choose, required, called):
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
