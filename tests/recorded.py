"""Runs' folders as training would leave them, made by hand: reports only read."""

from hydra import initialize_config_dir
from omegaconf import OmegaConf

from fedexp.jobs import sweeps
from fedexp.main import CONF
from fedexp.record.folder import RunFolder


def asked(*words, compose=None):
    """The sweeps of a command line."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return sweeps(list(words), compose)


def leave_run(job, accuracies, status="finished", root=None, **changes):
    """A finished run of a job: an accuracy a round, the last one final. `changes`: keys that differ."""
    config = job.config.copy()
    OmegaConf.set_struct(config, False)
    for key, value in {**({"output_root": str(root)} if root else {}), **changes}.items():
        OmegaConf.update(config, key, value)
    folder = RunFolder(config)
    folder.path.mkdir(parents=True)
    folder.write_config()
    rows = [
        {"round": number + 1, "test_accuracy": accuracy, "bytes_total": 1e6 * (number + 1)}
        for number, accuracy in enumerate(accuracies)
    ]
    folder.write_metrics(rows)
    result = {"status": status, "rounds": len(rows), "final_accuracy": accuracies[-1], "best_accuracy": max(accuracies)}
    folder.write_result({**result, "bytes_up": 1, "bytes_down": 1, "fingerprint": folder.fingerprint})
    return folder.path
