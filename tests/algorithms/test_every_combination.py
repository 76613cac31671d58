"""Every algorithm with every part, and with a model of one piece: it trains, or it is refused by an error that names
what cannot be combined and says why."""

import pickle
from itertools import zip_longest

import pytest
import torch
from composing import composed
from options import CASES
from torch import nn
from worlds import make_context, make_model, make_world, run_stages

from fedexp.building import build_algorithm
from fedexp.config.options import CONF
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.models import Model

PARTS = ("selection", "server_optimizer", "compression", "privacy", "system")
SMALL = {
    "fedconcat": ["algorithm.encoder_rounds=1"],
    "fedconcat_id": ["algorithm.clustering.random_inputs=20"],
    "fedgen": ["algorithm.server_steps=2", "algorithm.server_batch=8"],
    "data_sharing": ["algorithm.pretraining_epochs=1", "algorithm.pretraining_batch_size=50"],
    "fedavg_pretrained": ["algorithm.pretraining_epochs=1", "algorithm.pretraining_batch_size=50"],
}


OWN = "the algorithm's own"


def names_of(part):
    return sorted({path.stem for path in (CONF / part).glob("*.yaml")} - {"own"})


@pytest.fixture(scope="module")
def parts():
    """The config of each part's options."""
    return {part: {name: composed(f"{part}={name}")[part] for name in names_of(part)} for part in PARTS}


@pytest.mark.parametrize("name", CASES)
def test_with_every_part(parts, name):
    """Options of all parts are tried together. One that is refused is replaced by the algorithm's own, and is also
    tried alone, since it may have been refused only together with the others."""
    more = [word for start, words in SMALL.items() if name.startswith(start) for word in words]
    config = composed(f"algorithm={name}", *more)
    options = [
        [OWN, *sorted(option for option, held in found.items() if held != config[part])]
        for part, found in parts.items()
    ]  # fmt: skip
    for row in zip_longest(*options, fillvalue=OWN):  # first the algorithm's own of each
        chosen = dict(zip(PARTS, row))
        while (refused := refused_part(config, parts, chosen)) is not None:
            assert chosen[refused] != OWN, f"the algorithm's own {refused} is refused with {chosen}"
            alone = dict.fromkeys(PARTS, OWN) | {refused: chosen[refused]}
            if alone != chosen:
                assert refused_part(config, parts, alone) in (None, refused)
            chosen[refused] = OWN


def refused_part(config, parts, chosen):
    """Train with these parts, for two rounds; None, or the part that is said to be impossible, with a reason."""
    own = pickle.loads(pickle.dumps(config))  # a third of the time of config.copy()
    for part, option in chosen.items():
        own[part] = config[part] if option == OWN else parts[part][option]
    world = make_world([20] * 6)
    cohort = 6 if chosen["selection"] == "full" else 2
    local = Local(epochs=1, batch_size=10, lr=0.05, momentum=0.0)  # without, as pFedMe trains
    ctx = make_context(make_model("norm", world), world, local, cohort, rounds=2)
    try:
        state, _ = run_stages(build_algorithm(own), ctx)
    except ConfigError as error:
        part = error.key.split(".")[0]
        assert part in PARTS, f"{chosen}: {error}"
        assert len(error.right) > 20
        return part
    assert all(torch.isfinite(leaf).all() for leaf in state["params"].values()), chosen
    return None


@pytest.mark.parametrize("name", CASES)
def test_with_a_model_of_one_piece(name):
    """Most algorithms do not need a model of an encoder and a head; those that do refuse another before training."""
    more = [word for start, words in SMALL.items() if name.startswith(start) for word in words]
    algorithm, world = build_algorithm(composed(f"algorithm={name}", *more)), make_world([20] * 6)
    model = Model(nn.Sequential(nn.Flatten(), nn.Linear(64, world.classes)).double())
    local = Local(epochs=1, batch_size=10, lr=0.05, momentum=0.0)
    ctx = make_context(model, world, local, cohort=2, rounds=2)
    if algorithm.needs_head:
        with pytest.raises(ConfigError, match=r"^model=.* encoder"):
            run_stages(algorithm, ctx)
    else:
        state, _ = run_stages(algorithm, ctx)
        assert all(torch.isfinite(leaf).all() for leaf in state["params"].values())
