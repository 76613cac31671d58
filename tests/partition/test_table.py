"""python -m fedexp.partition."""

import pytest

from fedexp.partition.__main__ import main


def test_table_shows_every_client_and_the_emd(capfd):
    main(["partition=shards1", "clients=10"])
    output = capfd.readouterr().out
    assert "mean EMD 1.800" in output
    assert output.count("│") >= 10 * 13


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["partition=dirr"], "did you mean dir?"),
        (["partition=dir", "partition.alpha=-1"], "partition.alpha=-1"),
        (["paper=fedcat", "dataset=svhn"], "paper=fedcat: gives no model for svhn; name one with model=NAME"),
    ],
)
def test_bad_settings_are_said(capfd, words, said):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert said in capfd.readouterr().err
