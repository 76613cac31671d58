"""Every option of conf/algorithm and of its parts, as small a run as it goes."""

import pytest
from program import SMALL

from fedexp.config.options import CONF

WORDS = [
    *SMALL, "dataset=made", "dataset.shape=[1,8,8]", "dataset.train=300", "dataset.test=60", "clients=5",
    "clients_per_round=2", "rounds=2", "local.batch_size=8", "local.steps=1",
]  # fmt: skip
_MORE = {
    "fedconcat": ["algorithm.encoder_rounds=1"],
    "fedconcat_id": ["algorithm.clustering.random_inputs=200"],
    "fedgen": ["algorithm.server_steps=5"],
    "data_sharing": ["algorithm.pretraining_epochs=1", "algorithm.pretraining_batch_size=500"],
    "pfedme": ["local.lr=0.05"],
    "fedavg_ft": ["algorithm.tuning_epochs=[1,2]"],
    "fedbabu": ["algorithm.tuning_epochs=[1]"],
    "fedrep": ["algorithm.head_epochs=1"],
    "fedavg_pretrained": ["algorithm.pretraining_epochs=1", "algorithm.pretraining_batch_size=500"],
}
ALGORITHMS = sorted(path.stem for path in (CONF / "algorithm").glob("*.yaml") if path.stem != "own")
_COMPOSED = {  # of FedAvg and a part, or of FedCat or FedConcat with other values: those have tests of their own
    "clusamp", "fedadagrad", "fedadam", "fedavgm", "fedyogi", "power_of_choice",
    "fedconcat_balanced", "fedconcat_dp", "fedconcat_ib", "fedconcat_id_balanced",
    "fedconcat_fedsoft", "fedconcat_fesem", "fedconcat_ifca", "fedcat_dc", "fedcat_gc",
}  # fmt: skip
CASES = [pytest.param(name, marks=pytest.mark.slow) if name in _COMPOSED else name for name in ALGORITHMS]
_WITH = {  # of parts
    "full": "clients_per_round=5", "adaptive_clipping": "privacy.noise_multiplier=0.1",
    "devices": "system.dropout=0.3 system.deadline=1.5", "stragglers": "local.steps=2",
}  # fmt: skip
_OF_FEDAVG = {"selection": "uniform", "server_optimizer": "sgd"}  # and none of the others: algorithm=fedavg has them
PARTS = [
    f"{group}={path.stem} {_WITH.get(path.stem, '')}".strip()
    for group in ("selection", "server_optimizer", "compression", "privacy", "system")
    for path in sorted((CONF / group).glob("*.yaml")) if path.stem not in ("own", _OF_FEDAVG.get(group, "none"))
]  # fmt: skip


def words_of(algorithm: str) -> list[str]:
    """The words of an option of conf/algorithm."""
    more = [word for start, words in _MORE.items() if algorithm.startswith(start) for word in words]
    return [*WORDS, f"algorithm={algorithm}", *more]
