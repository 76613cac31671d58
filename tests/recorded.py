"""Runs' folders as training would leave them, made by hand: reports only read."""

from omegaconf import OmegaConf

from fedexp.record.folder import RunFolder


def leave_run(job, accuracies, status="finished", root=None, columns=None, **changes):
    """A run of a job, carried out for as many rounds as it asks for: the accuracies of the last of them.

    columns: further columns of metrics.csv, each with one value for all rounds. changes: keys of the config.
    """
    config = job.config.copy()
    OmegaConf.set_struct(config, False)
    for key, value in {**({"output_root": str(root)} if root else {}), **changes}.items():
        OmegaConf.update(config, key, value)
    folder = RunFolder(config)
    folder.path.mkdir(parents=True)
    folder.write_config()
    first = config.rounds - len(accuracies) + 1
    rows = [
        {"round": number, "test_accuracy": accuracy, "bytes_up": 5e5 * number, "bytes_down": 5e5 * number,
         "bytes_total": 1e6 * number, "seconds": number, "samples_per_second": 1, **(columns or {})}
        for number, accuracy in enumerate(accuracies, first)
    ]  # fmt: skip
    folder.write_metrics(rows)
    totals = {name: rows[-1][name] for name in ("bytes_up", "bytes_down", "seconds")}
    found = {"final_accuracy": accuracies[-1], "best_accuracy": max(accuracies), "emd": 0.0}
    told = {"status": status, "rounds": config.rounds, "fingerprint": folder.fingerprint}
    folder.write_result({**told, **found, **totals})
    return folder.path
