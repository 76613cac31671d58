"""The pinned runs: their names, which are the options that each is there for, and the words of their command lines.

All data are made up and tiny. Clients are of unequal size where the partition allows it, and last batches partial.
"""

from .pinned import LEAF


def _made(shape: str, train: int = 160) -> str:
    """Made-up examples in the place of a paper's data set; what the paper does with its images stays."""
    return f"""
        dataset._target_=fedexp.data.made.made ~dataset.root ~dataset.download +dataset.shape={shape}
        +dataset.classes=5 +dataset.train={train} +dataset.test=50
    """


_ALL = """
    tracking=none checkpoint_seconds=1000 hardware.device=cpu hardware.precision=float64 hardware.convolution=direct
    hardware.workers=1 pictures=false
"""
_DATA = "dataset=made dataset.shape=[1,8,8] dataset.classes=5 dataset.train=240 dataset.test=60"
_COHORT = "model.hidden=16 clients=7 clients_per_round=3 local.batch_size=8"
# Three rounds have nine places for seven clients: some take part again, and what they remember counts.
_ALGORITHM = f"""
    {_DATA} {_COHORT} partition=dir0.5 partition.quantity_alpha=4 rounds=3 local.epochs=2 local.lr=0.05
    local.momentum=0.9 local.lr_decay=0.9 local.weight_decay=0.001 local.max_grad_norm=2
"""
_PARTITION = f"{_COHORT} rounds=2 local.epochs=1 local.lr=0.01 local.momentum=0.9"
_MODEL = """
    dataset=made dataset.classes=5 dataset.train=40 dataset.test=20 partition=iid partition.quantity_alpha=4
    clients=4 clients_per_round=2 local.batch_size=4 local.steps=2 rounds=2 local.lr=0.01 local.momentum=0.9
"""
_PAPER = "clients=7 clients_per_round=3 rounds=3 local.epochs=2"

_CYCLES = "rounds=6"  # two of FedCat's, of three rounds each
_OWN = "evaluate.clients=all evaluate.every=3 evaluate.on=holdout partition.holdout=0.2"  # what clients use
_STAGES = "rounds=4 algorithm.encoder_rounds=2"  # two rounds of encoders, two of the classifier
_CLUSTERS = f"{_STAGES} algorithm.clustering.clusters=3"
_INPUTS = "algorithm.clustering.random_inputs=50"
_GENERATOR = "algorithm.noise=10 algorithm.hidden=16 algorithm.server_batch=16 algorithm.server_steps=5"
_WARM_UP = "algorithm.pretraining_epochs=2"
_ONE_STEP = "dataset.test=8 local.steps=1 local.lr=0.0001 rounds=1"
_WRITERS = f"dataset=femnist {LEAF} dataset.writers=7 dataset.more_than=1 model.hidden=4"
_SIZES = "partition.mean=14 partition.deviation=5 partition.smallest=5 partition.largest=25"
_GREY, _COLOUR, _RESNET9 = _made("[1,16,16]"), _made("[3,16,16]"), f"{_made('[3,32,32]', 60)} rounds=1 local.epochs=1"
_CROP = "dataset.transform.crop=16"

_ALGORITHMS = {
    "algorithm=apfl": f"{_OWN} algorithm.adaptive=round",
    "algorithm=cadis": "algorithm.epsilon=0.7 algorithm.gamma=0.3 local.lr=0.01 seed=1",  # some are similar, some not
    "algorithm=centralized": "",
    "algorithm=clusamp": "",
    "algorithm=data_sharing": _WARM_UP,
    "algorithm=ditto": _OWN,
    "algorithm=fedadagrad": "",
    "algorithm=fedadam": "",
    "algorithm=fedavg": "",
    "algorithm=fedavg_ft": f"{_OWN} algorithm.tuning_epochs=[1]",
    "algorithm=fedavg_pretrained": _WARM_UP,
    "algorithm=fedavgm": "",
    "algorithm=fedbabu": f"{_OWN} algorithm.tuning_epochs=[1]",
    "algorithm=fedbuff": "algorithm.concurrency=5 system.speed_spread=1.5",
    "algorithm=fedcat": _CYCLES,
    "algorithm=fedcat_dc": _CYCLES,
    "algorithm=fedcat_gc": _CYCLES,
    "algorithm=fedconcat": _CLUSTERS,
    "algorithm=fedconcat_balanced": _CLUSTERS,
    "algorithm=fedconcat_dp": f"{_CLUSTERS} algorithm.clustering.epsilon=1",
    "algorithm=fedconcat_fedsoft": _CLUSTERS,
    "algorithm=fedconcat_fesem": _CLUSTERS,
    "algorithm=fedconcat_ib": _CLUSTERS,
    "algorithm=fedconcat_id": f"{_CLUSTERS} {_INPUTS}",
    "algorithm=fedconcat_id_balanced": f"{_CLUSTERS} {_INPUTS}",
    "algorithm=fedconcat_ifca": _CLUSTERS,
    "algorithm=feddecorr": "algorithm.beta=0.01",  # stiff: at 0.1 two processors differ by 1.6e-10
    "algorithm=feddyn": "",
    "algorithm=fedexp": "algorithm.epsilon=1e-5 clients_per_round=7 algorithm.epsilon_scale=published",
    "algorithm=fedfa": "algorithm.alpha=0.5 server_optimizer.gamma=0.5",
    "algorithm=fedgen": f"{_GENERATOR} algorithm.client_batch=8",
    "algorithm=fedlc": "",
    "algorithm=fednova": "algorithm.mu=0.1",
    "algorithm=fedntd": "",
    "algorithm=fedper": "",
    "algorithm=fedprox": "algorithm.mu=0.1",
    "algorithm=fedrep": f"{_OWN} algorithm.head_epochs=1 algorithm.tuning_epochs=[1]",
    "algorithm=fedrs": "",
    "algorithm=fedsam": "",
    "algorithm=fedsoft": "algorithm.clusters=3",
    "algorithm=fedyogi": "",
    "algorithm=fesem": "algorithm.clusters=3",
    "algorithm=ifca": "algorithm.clusters=3",
    "algorithm=label_clusters": "algorithm.clusters=3",
    "algorithm=lg_fedavg": f"{_OWN} algorithm.pretraining_rounds=1",
    "algorithm=local_only": _OWN,
    "algorithm=mofedsam": "",
    "algorithm=moon": "",
    "algorithm=pfedme": f"{_OWN} local.momentum=0 local.weight_decay=0 local.max_grad_norm=null",
    "algorithm=power_of_choice": "selection.merge=equal",
    "algorithm=scaffold": "",
}
_PARTITIONS = {
    "partition=bc": f"{_DATA} partition.mean=12",
    "partition=classes2": _DATA,
    "partition=classes3": _DATA,
    "partition=dir": f"{_DATA} partition.construction=class_split partition.min_size=5",
    "partition=dir0.1": _DATA,
    "partition=dir0.5": f"{_DATA} partition.quantity_alpha=2",
    "partition=dir1.0": _DATA,
    "partition=domains": f"{_WRITERS} clients=14",
    "partition=emd": f"{_DATA} clients=5",
    "partition=iid": f"{_DATA} partition.quantity_alpha=1",
    "partition=mc": f"{_DATA} {_SIZES}",
    "partition=natural": _WRITERS,
    "partition=pa": f"{_DATA} partition.log_mean=3",
    "partition=shards1": _DATA,
    "partition=shards2": _DATA,
    "partition=shards2 partition.noise=0.2 partition.quantity_skew=1": _DATA,
    "partition=uc": f"{_DATA} partition.mean=12 partition.deviation=3",
}
_MODELS = {
    "algorithm=fedbn": "model=resnet9 dataset.shape=[3,32,32] local.lr=0.001 clients_per_round=3",
    "model=kws_cnn": "dataset.shape=[1,25,8]",
    "model=lstm": "dataset.shape=[12] dataset.tokens=9 model.hidden=6 model.embedding=3 +model.vocabulary=9",
    "model=mcmahan_cnn": "dataset.shape=[1,8,8]",
    "model=resnet18": f"dataset.shape=[3,8,8] {_ONE_STEP}",
    "model=resnet50": f"dataset.shape=[3,8,8] {_ONE_STEP}",
    "model=resnet9": f"dataset.shape=[3,32,32] {_ONE_STEP}",
    "model=simple_cnn": "dataset.shape=[3,16,16]",
    "model=simple_cnn_wide": "dataset.shape=[3,16,16]",
    "model=tf_cnn": "dataset.shape=[3,8,8]",
    "model=vgg9": "dataset.shape=[3,8,8]",
}
_PARTS = {
    "compression=majority_vote": "compression.step=0.01",
    "compression=qsgd": "algorithm=fednova",
    "compression=random_k": "compression.share=0.2 algorithm=feddyn",
    "compression=sign": "algorithm=scaffold",
    "compression=top_k": "compression.share=0.2 algorithm=scaffold",
    "privacy=adaptive_clipping": "privacy.noise_multiplier=0.2 selection=poisson",
    "privacy=dp_fedavg": "privacy.noise_multiplier=0.5 privacy.clip_norm=0.2",
    "selection=clusamp": "algorithm=fedprox algorithm.mu=0.1",
    "selection=full": "clients_per_round=7",
    "selection=poisson": "clients_per_round=1 algorithm=scaffold",
    "selection=power_of_choice": "algorithm=scaffold selection.loss=batch selection.candidates=5",
    "server_optimizer=adagrad": "",
    "server_optimizer=adam": "server_optimizer.bias_correction=true",
    "server_optimizer=momentum": "server_optimizer.nesterov=true",
    "server_optimizer=yogi": "algorithm=scaffold compression=top_k",
    "system=devices": "system.dropout=0.3 system.deadline=2 algorithm=feddyn",
    "system=stragglers": "algorithm=fednova",
}
_PAPERS = {
    "paper=fedcat dataset=mnist algorithm=fedcat": f"{_made('[1,8,8]')} {_CYCLES}",
    "paper=fedcat dataset=mnist algorithm=fedgen": f"{_made('[1,8,8]')} {_GENERATOR}",
    "paper=fedcat dataset=cifar10 algorithm=fedprox": _COLOUR,
    "paper=fedcat dataset=cifar100_coarse partition=dir0.5 algorithm=clusamp": _COLOUR,
    "paper=fedcat dataset=femnist partition=natural algorithm=scaffold": _WRITERS,
    "paper=cadis dataset=mnist algorithm=cadis": f"{_made('[1,8,8]')} {_SIZES} clients_per_round=5",
    "paper=cadis dataset=mnist algorithm=centralized": f"{_made('[1,8,8]')} {_SIZES}",
    "paper=cadis dataset=mnist partition=pa algorithm=feddyn": _made("[1,8,8]"),
    "paper=cadis dataset=cifar10 partition=bc algorithm=fedfa": f"{_RESNET9} partition.mean=3",
    "paper=cadis dataset=cifar100 partition=uc algorithm=fedprox": f"{_RESNET9} partition.mean=4 partition.deviation=1",
    "paper=zhao2018 dataset=mnist": f"{_made('[1,8,8]')} reference=centralized",
    "paper=zhao2018 dataset=mnist partition=emd algorithm=centralized": f"{_made('[1,8,8]')} clients=5",
    "paper=zhao2018 dataset=cifar10 algorithm=data_sharing": f"{_COLOUR} dataset.transform.crop=8 {_WARM_UP}",
    "paper=zhao2018 dataset=speech_commands partition=shards2 algorithm=fedavg_pretrained": (
        f"{_made('[1,25,8]')} ~dataset.validation {_WARM_UP}"
    ),
    "paper=fedconcat dataset=cifar10 algorithm=fedconcat": f"{_COLOUR} {_CROP} {_STAGES}",
    "paper=fedconcat dataset=cifar10 algorithm=centralized": f"{_COLOUR} {_CROP}",
    "paper=fedconcat dataset=cifar100 partition=dir0.1 algorithm=moon": f"{_COLOUR} {_CROP}",
    "paper=fedconcat dataset=fmnist partition=dir0.5 algorithm=fedconcat_ib": f"{_GREY} {_STAGES}",
    "paper=fedconcat dataset=mnist partition=classes3 algorithm=fedconcat_fedsoft": f"{_GREY} {_STAGES}",
    "paper=fedconcat dataset=svhn partition=iid algorithm=fedconcat_id": f"{_COLOUR} {_STAGES} {_INPUTS}",
    "paper=fedconcat dataset=tiny_imagenet algorithm=fedconcat_balanced": f"{_COLOUR} ~dataset.size {_CROP} {_STAGES}",
}

CASES: dict[str, list[str]] = {
    name: f"{_ALL} {name} {base} {words}".split()
    for base, table in (
        (_ALGORITHM, _ALGORITHMS | _PARTS), (_PARTITION, _PARTITIONS), (_MODEL, _MODELS), (_PAPER, _PAPERS),
    )
    for name, words in table.items()
}  # fmt: skip
