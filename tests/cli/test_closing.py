"""The end of a sweep."""

import shlex

from composing import asked
from recorded import leave_run

from fedexp.cli.closing import compare


def test_a_run_asked_for_after_several_numbers_of_rounds_is_shown_after_the_most(tmp_path, capsys):
    for number, words in enumerate(("rounds=4,2", "rounds=2,4")):
        (sweep,) = asked(words, "seed=0,1", f"output_root={tmp_path / str(number)}")
        longest = [job for job in sweep.jobs if job.config.rounds == 4]
        compare(sweep, [leave_run(job, [0.2, 0.3, 0.4, 0.9]) for job in longest], [])
        assert "90.00" in capsys.readouterr().out


def test_the_command_that_is_told_can_be_typed_as_it_stands(tmp_path, capsys):
    place = tmp_path / "ü sp [x]"
    (sweep,) = asked("algorithm=fedavg,fedcat", f"output_root='{place}'")
    compare(sweep, [leave_run(job, [0.1, 0.5]) for job in sweep.jobs], [])
    _, _, command = capsys.readouterr().out.partition("an interactive page: ")
    assert shlex.split(command) == ["fedexp", "report", str(place)]
