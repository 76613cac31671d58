"""The end of a sweep."""

import shlex

from composing import asked
from recorded import leave_run

from fedexp.cli.closing import compare


def test_the_command_that_is_told_can_be_typed_as_it_stands(tmp_path, capsys):
    place = tmp_path / "ü sp [x]"
    (sweep,) = asked("algorithm=fedavg,fedcat", f"output_root='{place}'")
    compare(sweep, [leave_run(job, [0.1, 0.5]) for job in sweep.jobs], [])
    _, _, command = capsys.readouterr().out.partition("an interactive page: ")
    assert shlex.split(command) == ["fedexp", "report", str(place)]
