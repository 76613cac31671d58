"""Keyword features: the same as torchaudio's, and a folder of made sounds read as the data set."""

import hashlib
import sys
import tarfile
import wave

import numpy as np
import pytest
import torch
from worlds import make_context, rounds

from fedexp import files
from fedexp.algorithms.fedavg import FedAvg
from fedexp.data import Transform
from fedexp.data import speech_commands as module
from fedexp.data.mfcc import mfcc
from fedexp.data.speech_commands import KEYWORDS, RATE, speech_commands
from fedexp.engine import Local
from fedexp.errors import ConfigError
from fedexp.models import Model
from fedexp.models.keyword import kws_cnn
from fedexp.partition.iid import iid
from fedexp.world import World

TIME = np.arange(RATE) / RATE
CHIRP = (0.5 * np.sin(2 * np.pi * (300 + 900 * TIME) * TIME)).astype(np.float32)
# torchaudio 2.11's MFCC of that chirp, log_mels, 512 points, frames 0, 24 and 49.
TORCHAUDIO = {
    0: [-56.742, 32.899, 11.525, -5.005, -11.776, -12.287, -10.067, -6.442, -2.020, 2.126],
    24: [-63.348, 0.164, -27.518, 1.738, 17.676, -3.362, -11.643, 2.772, 7.870, -1.900],
    49: [2.095, -7.735, -3.348, 6.371, -5.769, 2.183, 1.259, -3.090, 2.442, -0.382],
}


def test_features_are_those_of_torchaudio():
    features = mfcc(CHIRP[None], RATE)
    assert features.shape == (1, 50, 10)
    for frame, expected in TORCHAUDIO.items():
        assert features[0, frame] == pytest.approx(expected, abs=2e-3)


def test_torchaudio_itself_agrees():
    """Wherever torchaudio is installed and imports beside this torch."""
    try:
        from torchaudio.transforms import MFCC
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"torchaudio does not import here: {error}")
    mel = {"n_fft": 512, "win_length": 480, "hop_length": 320, "n_mels": 40, "f_min": 20, "f_max": 4000}
    theirs = MFCC(RATE, n_mfcc=10, log_mels=True, melkwargs={**mel, "center": False})
    padded = torch.nn.functional.pad(torch.from_numpy(CHIRP), (16, 16 + 160))  # their window lies mid-frame
    assert mfcc(CHIRP[None], RATE)[0] == pytest.approx(theirs(padded).T.numpy(), abs=1e-3)


def test_silence_is_flat():
    """log(1e-6) in 40 bands: sqrt(40) times it, and nothing else."""
    features = mfcc(np.zeros((2, RATE)), RATE)
    assert features[..., 0] == pytest.approx(np.full((2, 50), np.sqrt(40) * np.log(1e-6)))
    assert abs(features[..., 1:]).max() < 1e-12


def write(path, samples, rate=RATE):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as clip:
        clip.setnchannels(1)
        clip.setsampwidth(2)
        clip.setframerate(rate)
        clip.writeframes((samples * 32767).astype("<i2").tobytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ten speakers say each word twice: tones whose height is the word. One clip is too short."""
    base = tmp_path_factory.mktemp("data") / "speech_commands_v0.02"
    noise = np.random.default_rng(0)
    for place, word in enumerate(KEYWORDS):
        for speaker in range(10):
            for take in range(2):
                tone = 0.3 * np.sin(2 * np.pi * (200 + 250 * place) * TIME) + 0.02 * noise.normal(size=RATE)
                length = RATE if (word, speaker, take) != ("go", 3, 1) else RATE // 2
                write(base / word / f"{speaker:08x}_nohash_{take}.wav", tone[:length])
    write(base / "bed" / "00000000_nohash_0.wav", CHIRP)
    return base.parent


def read(folder, **more):
    return speech_commands(str(folder), Transform(), **{"download": False, **more})


def test_a_folder_is_read(folder):
    """Whole speakers train or test; features are standardised by the training clips."""
    data = read(folder)
    assert data.train_x.shape[1:] == (1, 50, 10)
    assert data.train_x.dtype == torch.float32
    assert torch.allclose(data.train_x.mean((0, 2)), torch.zeros(1, 10), atol=1e-4)
    assert torch.allclose(data.train_x.std((0, 2), correction=0), torch.ones(1, 10), atol=1e-3)
    whole = read(folder, validation=True)
    assert len(whole.train_y) >= len(data.train_y)
    assert len(whole.train_y) + len(whole.test_y) <= 200
    assert torch.equal(whole.test_y, data.test_y)
    assert torch.bincount(data.train_y).tolist() == [len(data.train_y) // 10] * 10
    assert len(data.owners) == len(data.train_y)
    assert torch.bincount(data.owners).tolist() == [20] * (len(data.train_y) // 20)
    assert data.class_names == list(KEYWORDS)


@pytest.mark.parametrize("place", ["", "speech_commands_v0.02"])
def test_root_may_hold_it_or_be_it(folder, place):
    assert len(read(folder / place).train_y) == len(read(folder).train_y)


def test_speakers_are_split_as_published():
    """80 : 10 : 10 of many speakers, and every clip of a speaker on the same side."""
    shares = np.bincount([module._part(module.Path(f"{number:08x}_nohash_0.wav")) for number in range(4000)])
    assert (shares / 4000) == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    sides = {module._part(module.Path(word) / f"a69b9b3e_nohash_{take}.wav") for word in KEYWORDS for take in range(3)}
    assert len(sides) == 1


def test_features_are_kept_until_the_folder_changes(folder, capsys):
    cache = folder / "speech_commands_v0.02" / ".fedexp-mfcc.pt"
    before = read(folder)
    held = torch.load(cache, weights_only=True)
    shifted = {**held, "content": held["content"] + torch.arange(10)}
    files.write(cache, lambda file: files.dump(shifted, file))
    marked = torch.load(cache, weights_only=True)["content"]
    assert torch.allclose(read(folder).train_x, before.train_x, atol=1e-3)  # a shift standardises away
    assert torch.equal(torch.load(cache, weights_only=True)["content"], marked)  # it was read, not made anew
    write(folder / "speech_commands_v0.02" / "yes" / "00000000_nohash_0.wav", CHIRP[: RATE - 1])
    read(folder)
    assert not torch.equal(torch.load(cache, weights_only=True)["content"], marked)
    assert capsys.readouterr().out == ""
    changed = read(folder).train_x
    cache.write_bytes(b"torn")
    assert torch.equal(read(folder).train_x, changed)
    assert f"fedexp: {cache} has no checksum at its end" in capsys.readouterr().out


def test_a_missing_librosa_is_said(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "librosa", None)
    with pytest.raises(ConfigError, match=r"which is not installed: pip install the extra, fedexp\[speech\]"):
        read(folder)


def test_what_cannot_be_read_is_said(folder, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="speech_commands is not there; unpack http"):
        read(tmp_path)
    monkeypatch.setattr(module, "_URL", "http://127.0.0.1:9/none.tar.gz")  # a port where nothing answers
    with pytest.raises(ConfigError, match="neither there nor could it be downloaded"):
        read(tmp_path, download=True)
    write(tmp_path / "yes" / "00000000_nohash_0.wav", CHIRP)
    with pytest.raises(ConfigError, match="has no clips of: no, up"):
        read(tmp_path)
    for word in KEYWORDS:
        write(tmp_path / word / "00000000_nohash_0.wav", CHIRP, rate=8000)
    with pytest.raises(ConfigError, match="is not 16 kHz"):
        read(tmp_path)
    for word in KEYWORDS:
        write(tmp_path / word / "00000000_nohash_0.wav", CHIRP)
    clip = tmp_path / "yes" / "00000000_nohash_0.wav"
    clip.write_bytes(clip.read_bytes()[:-3])
    with pytest.raises(ConfigError, match=rf"{clip}: is cut short: 15998 of 16000 samples"):
        read(tmp_path)
    (tmp_path / "yes" / "00000000_nohash_0.wav").write_bytes(b"not a sound")
    with pytest.raises(ConfigError, match="does not decode"):
        read(tmp_path)


@pytest.fixture
def archive(folder, tmp_path, monkeypatch):
    """The folder's archive as the download leaves it, below a root whose name has capitals."""
    file = tmp_path / "MyData" / "speech_commands_v0.02.tar.gz"
    file.parent.mkdir()
    with tarfile.open(file, "w:gz") as whole:
        whole.add(folder / "speech_commands_v0.02", ".")
    declare(monkeypatch, file)
    return file


def declare(monkeypatch, file):
    """Make a file the published archive."""
    monkeypatch.setattr(module, "_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())


def test_an_archive_that_is_there_is_unpacked(folder, archive):
    unpacked = read(archive.parent, download=True)
    assert torch.equal(unpacked.train_x, read(folder).train_x)
    archive.unlink()
    assert torch.equal(read(archive.parent).train_y, unpacked.train_y)  # no longer needed


def test_another_archive_is_refused(archive):
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size * 6 // 10])
    with pytest.raises(ConfigError, match=r"MyData/speech_commands_v0\.02\.tar\.gz is not the published archive"):
        read(archive.parent, download=True)


@pytest.mark.parametrize("damage", [lambda whole: whole[: len(whole) * 6 // 10], lambda whole: b"<html></html>" * 99])
def test_an_archive_that_does_not_unpack_leaves_nothing_behind(archive, monkeypatch, damage):
    """Otherwise the next start would train on the part that was unpacked."""
    archive.write_bytes(damage(archive.read_bytes()))
    declare(monkeypatch, archive)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"MyData/speech_commands_v0\.02, or pass dataset\.root=FOLDER"):
            read(archive.parent, download=True)
        assert list(archive.parent.iterdir()) == [archive]


def test_the_keyword_cnn_learns_the_tones(folder):
    """Two clients, a few rounds: features, model and engine fit together."""
    data, local = read(folder), Local(epochs=5, batch_size=10, lr=0.05, momentum=0.0)
    parts = iid(data, 2, 0)
    world = World(
        data.train_x, data.train_y, data.test_x, data.test_y, torch.cat(parts),
        torch.tensor([len(part) for part in parts]), 10, data.transform,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Model(kws_cnn(world.shape, 10))
    fedavg = FedAvg()
    state = rounds(fedavg, make_context(model, world, local, cohort=2, precision="float32"), 6)[-1].after
    right = fedavg.predict(state, model, world.prepare_test(slice(None))).argmax(1) == world.test_y
    assert right.float().mean() > 0.9
