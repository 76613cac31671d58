"""Bad command lines: every key with a list of bad values, every group misspelt, as a list, deleted, and sigils."""

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any, NamedTuple

from composing import composed
from omegaconf import DictConfig, OmegaConf

from fedexp.config.constructors import GROUPS, PARTS
from fedexp.config.options import CONF

TINY = ["rounds=1", "clients=10", "clients_per_round=2", "local.steps=1", "local.batch_size=4", "partition=iid",
        "hardware=cpu", "hardware.workers=1", "tracking=none"]  # fmt: skip
DATA = ["dataset=made", "dataset.shape=[1,8,8]", "dataset.train=60", "dataset.test=20"]
MODEL = ["model=mcmahan_cnn", "model.hidden=4"]
OWN = {  # classes and functions that stand for the user's own, with the keys that they need
    "algorithm": ["algorithm._target_=fedexp.algorithms.fedavg.FedAvg"],
    "dataset": ["dataset._target_=fedexp.data.made.made", "+dataset.shape=[1,8,8]", "+dataset.train=60"],
    "model": ["model._target_=fedexp.models.mcmahan.mcmahan_cnn"],
    "partition": ["partition._target_=fedexp.partition.iid.iid"],
    "tracking": ["tracking._target_=fedexp.record.tracker.Tracker"],
    "selection": ["selection._target_=fedexp.selection.uniform.Uniform"],
    "server_optimizer": ["server_optimizer._target_=fedexp.server_optimizer.sgd.Sgd"],
    "compression": ["compression._target_=fedexp.compression.none.NoCompression"],
    "privacy": ["privacy._target_=fedexp.privacy.none.NoPrivacy"],
    "system": ["system._target_=fedexp.system.none.Ideal"],
}
TEXT = ("name", "output_root", "sweep", "project", "entity", "group", "root", "repository", "tags")  # free text

ALWAYS = ["9" * 5000, "'new\nline'", "'\x00'", "${nosuch}", "???", "interval(0,1)", "choice(1,2)", "1,2", "glob(*)"]
MAYBE = ["", "null", "-1", "0", "1.5", "true", "x", "x" * 300, "[]", "{}", "1000000000", "../../x", "a/b", "'a b'", "ü"]
OF_NO_NUMBER = ["x", "[a,b]", "{a:b}", "nan", "inf", "-inf", ""]
SURELY: dict[type, list[str]] = {
    int: [*OF_NO_NUMBER, "1.5", "1e22", "1" + 22 * "0"],
    float: OF_NO_NUMBER,
    bool: ["x", "[a,b]", "{a:b}", "1.5", "nan"],
    str: ["[a,b]", "{a:b}"],
    list: ["x", "{a:b}", "nan", "[a,b]"],
    dict: ["x", "[a,b]", "3", "nan"],
}
OPTIONS = ["nosuch", "", "null", "nan", "inf", "3", "1e22", "[a,b]", "{a:b}", "../../x", "a/b", "x" * 300, "9" * 5000,
           "'a b'", "ü", "${nosuch}", "interval(0,1)", "choice(none,x)", "???"]  # fmt: skip


class Line(NamedTuple):
    """A command line. named: what its one line of refusal must hold, besides being one line; sure: whether it must be
    refused at all, or may be a strange way to say something possible."""

    words: list[str]
    named: str
    sure: bool


@cache
def lines(every_option: bool) -> list[Line]:
    """All of them: about each option's keys, or those of one config alone."""
    keys = list(_keys(every_option))
    return [*_values(keys), *_groups(), *_sigils(keys)]


def some(count: int, draw: Random, every_option: bool) -> list[Line]:
    """So many of them, drawn by lot."""
    return draw.sample(lines(every_option), count)


def _keys(every_option: bool) -> Iterator[tuple[str, Any, list[str]]]:
    """Every key with its value, and the words that a config has it with."""
    base = composed(*TINY, *DATA, *MODEL)
    yield from ((key, value, [*TINY, *DATA, *MODEL]) for key, value in _flat(base, ""))
    for group in (*GROUPS, *PARTS, "tracking") if every_option else ():
        for option in sorted(path.stem for path in (CONF / group).glob("*.yaml")):
            words = of_option(group, option)
            yield from ((key, value, words) for key, value in _flat(composed(*words)[group], f"{group}."))


def of_option(group: str, option: str) -> list[str]:
    """The words of a tiny run with this option."""
    words = [*TINY, f"{group}={option}", *(OWN[group] if option == "own" else [])]
    if group != "dataset":
        words += DATA
    elif option not in ("own", "made", "digits"):
        words.append("dataset.root=/nowhere")
    if group != "model":
        words += MODEL
    if group == "algorithm" and option.startswith("fedconcat"):
        words += ["algorithm.encoder_rounds=1", "rounds=2"]
        words += ["algorithm.clustering.random_inputs=200"] if option.startswith("fedconcat_id") else []
    if option == "fedgen":
        words.append("algorithm.server_steps=5")
    if option == "pfedme":
        words.append("local.lr=0.05")
    if option in ("data_sharing", "fedavg_pretrained"):
        words += ["algorithm.pretraining_epochs=1", "algorithm.pretraining_batch_size=500"]
    return words


def _flat(node: DictConfig, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in map(str, node):
        interpolated = OmegaConf.is_interpolation(node, name)
        value = None if interpolated else OmegaConf.select(node, name, throw_on_missing=False)
        yield f"{prefix}{name}", OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        if isinstance(value, DictConfig):
            yield from _flat(value, f"{prefix}{name}.")


def _values(keys: list[tuple[str, Any, list[str]]]) -> Iterator[Line]:
    for key, value, words in keys:
        if key in (*GROUPS, *PARTS, "hardware", "tracking", "paper", "table", "scale"):
            continue  # a choice: see _groups
        free = key.split(".")[-1] in TEXT or value is None
        surely = [*ALWAYS, *([] if free else SURELY[type(value)])]
        if key.endswith("_target_"):
            surely += ["nan", "x", "os", "math.pi", "fedexp.algorithms", "builtins.dict", "../../x", "3", "true"]
        maybe = MAYBE if key != "dataset.download" else []  # it would only wait for a network
        if key.endswith(("rounds", "epochs", "steps")):
            maybe = [each for each in maybe if each != "1000000000"]  # that much training can be asked for
        for bad in dict.fromkeys([*surely, *maybe]):
            yield Line([*words, f"{key}={bad}"], key, bad in surely)


def _groups() -> Iterator[Line]:
    for group in (*GROUPS, *PARTS, "hardware", "tracking", "paper", "hydra/launcher"):
        words = [word for word in [*TINY, *DATA, *MODEL] if not word.startswith((f"{group}=", f"{group}."))]
        for option in OPTIONS:
            yield Line([*words, f"{group}={option}"], group, True)
        for word in (f"~{group}", f"+{group}=nosuch", f"++{group}=nosuch", group, f"{group}==x", f"@{group}=x"):
            yield Line([*words, word], group, True)
        for word in (f"{group}.=1", f".{group}=1", f"{group}..x=1", f"--{group}=1", f"~{group}.nosuch"):
            yield Line([*words, word], "", True)
        for word in (f"+{group}@x=none", f"{group}@:x=none", f"-{group}=1"):
            yield Line([*words, word], "", False)


def _sigils(keys: list[tuple[str, Any, list[str]]]) -> Iterator[Line]:
    for key, value, words in keys:
        yield Line([*words, key], key, True)
        yield Line([*words, f"+{key}x=1"], f"{key}x", True)
        yield Line([*words, f"{key}x=1"], f"{key}x", True)
        yield Line([*words, f"~{key}"], "", key in ("rounds", "seed", "clients", "targets", "measures"))
        yield Line([*words, f"~{key}=nosuch"], "", value is not None)
        yield Line([*words, f"++{key}.x=1"], "", False)
        yield Line([*words, f"{key}[0]=1"], "", False)
