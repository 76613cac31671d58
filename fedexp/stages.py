"""Which rounds belong to which of a run's stages."""

from fedexp.algorithms.fedavg import Stage
from fedexp.errors import require


def check_rounds(stages: list[Stage], rounds: int) -> None:
    """Raise ConfigError unless the last stage begins within `rounds` communication rounds: the run is about it."""
    before = sum(stage.rounds for stage in stages[:-1] if stage.counted)
    require(
        rounds > before, "rounds", rounds, f"must be above {before}, after which the stage {stages[-1].name} begins"
    )  # fmt: skip


def last_round(stages: list[Stage], number: int, rounds: int) -> int:
    """The number of the last round of stage `number` in a run of `rounds` communication rounds."""
    stage = stages[number]
    if stage.rounds is None:
        return rounds
    if not stage.counted:
        return stage.rounds
    return min(rounds, stage.rounds + sum(each.rounds for each in stages[:number] if each.counted))
