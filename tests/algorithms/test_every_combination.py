"""Every algorithm with every part: it trains, or it is refused by an error that names the part and says why."""

import pytest
import torch
from composing import composed
from options import CASES
from worlds import make_context, make_model, make_world, run_stages

from fedexp.build import build_algorithm
from fedexp.config.compose import CONF
from fedexp.engine import Local
from fedexp.errors import ConfigError

PARTS = ("selection", "server_optimizer", "compression", "privacy", "system")
SMALL = {
    "fedconcat": ["algorithm.encoder_rounds=1"],
    "fedconcat_id": ["algorithm.clustering.random_inputs=20"],
    "fedgen": ["algorithm.server_steps=2", "algorithm.server_batch=8"],
    "data_sharing": ["algorithm.pretraining_epochs=1", "algorithm.pretraining_batch_size=50"],
    "fedavg_pretrained": ["algorithm.pretraining_epochs=1", "algorithm.pretraining_batch_size=50"],
}


@pytest.fixture(scope="module")
def parts():
    """The config of each part's options: a default one once, as every part has one."""
    found = {("selection", "uniform"): composed().selection}
    for part in PARTS:
        default = composed()[part]
        for option in sorted(path.stem for path in (CONF / part).glob("*.yaml")):
            config = composed(f"{part}={option}")[part]
            if config != default:
                found[part, option] = config
    return found


@pytest.mark.parametrize("name", CASES)
def test_with_every_part(parts, name):
    more = [word for start, words in SMALL.items() if name.startswith(start) for word in words]
    config, trained = composed(f"algorithm={name}", *more), []
    for (part, option), held in parts.items():
        own = config.copy()
        own[part] = held
        world = make_world([20] * 6)
        cohort = 6 if option == "full" else 2
        local = Local(epochs=1, batch_size=10, lr=0.05, momentum=0.0)  # without, as pFedMe trains
        ctx = make_context(make_model("norm", world), world, local, cohort, rounds=2)
        try:
            state, _ = run_stages(build_algorithm(own), ctx)
        except ConfigError as error:
            assert error.key.split(".")[0] == part, f"{part}={option}: {error}"
            assert len(error.right) > 20
            continue
        trained.append(option)
        assert all(torch.isfinite(leaf).all() for leaf in state["params"].values()), f"{part}={option}"
    assert "uniform" in trained  # with the default of each, at least
