"""Small versions of sweeps: `+scale=quick` lowers whatever costs time in every cell, and marks every run as scaled.

A scale (conf/scale/) has
    at_most  upper limits by key, for keys that the config has; clients_per_round shrinks with clients
    dataset  the data set that replaces every data set
    instead  by group: options, and the options that replace them
    set      by group and option: further values
    seeds    how many of a table's seeds are run
    name     its name in reports
The replacement is part of a run's config: `dataset.source` names the data that were used instead.
"""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedexp.config.compose import word
from fedexp.errors import ConfigError, nearest, require

_KEYS = ("name", "seeds", "dataset", "at_most", "instead", "set")


def scaled(config: DictConfig, scale: DictConfig) -> list[str]:
    """The overrides that shrink one composed config as `scale` says. Raises ConfigError for a key that no scale has,
    and for values of another kind."""
    asked: Any = OmegaConf.to_container(scale, resolve=True)
    for key, value in asked.items():
        if key not in _KEYS:
            raise ConfigError(f"scale.{key}", value, f"no such key; {nearest(str(key), _KEYS)}")
        groups = key not in ("at_most", "instead", "set") or isinstance(value, dict)
        require(groups, f"scale.{key}", value, "must be keys with values")
    words = _stand_in(config, asked.get("dataset"))
    for group, options in asked.get("instead", {}).items():
        name = config[group].get("name")
        if name in options:
            words.append(word(group, options[name]))
    for key, most in asked.get("at_most", {}).items():
        require(isinstance(most, int | float), f"scale.at_most.{key}", most, "must be a number")
        value = OmegaConf.select(config, key, default=most)  # a key that the config lacks needs no limit
        if value is None or value > most:
            words.append(word(key, most))
            if key == "clients":
                share = -(-config.clients_per_round * most // config.clients)  # rounded up
                words.append(word("clients_per_round", max(share, min(2, config.clients_per_round))))
    for group, options in asked.get("set", {}).items():
        values = options.get(config[group].get("name"), {})
        words += [word(key, value) for key, value in values.items()]
    return words


def _stand_in(config: DictConfig, dataset: dict[str, Any] | None) -> list[str]:
    """Replace the data set's own keys by those of the replacement; name and source together tell both."""
    if dataset is None or config.dataset["_target_"] == dataset["_target_"]:
        return []
    gone = [f"~dataset.{key}" for key in config.dataset if key not in ("name", "_target_")]
    own = [word(f"+dataset.{key}", value) for key, value in dataset.items() if key not in ("name", "_target_")]
    source = word("+dataset.source", f"{dataset['name']} in its place")
    return [*gone, source, word("dataset._target_", dataset["_target_"]), *own]
