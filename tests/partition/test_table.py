"""python -m fedexp.partition."""

from fedexp.partition.__main__ import main


def test_table_shows_every_client_and_the_emd(capfd):
    assert main(["partition=shards1", "clients=10"]) == 0
    output = capfd.readouterr().out
    assert "mean EMD 1.800" in output
    assert output.count("│") >= 10 * 13


def test_bad_settings_are_said(capfd):
    assert main(["partition=dirr"]) == 2
    assert "did you mean dir?" in capfd.readouterr().err
    assert main(["paper=fedcat", "dataset=svhn"]) == 2
    assert "paper=fedcat: gives no model for svhn; name one with model=NAME" in capfd.readouterr().err
    assert main(["partition=dir", "partition.alpha=-1"]) == 2
    assert "partition.alpha=-1" in capfd.readouterr().err
