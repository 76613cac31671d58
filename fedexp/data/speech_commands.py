"""Speech Commands (Warden 2018), version 0.02: the ten keywords as MFCC features, for keyword spotting."""

import hashlib
import wave
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tarfile import TarError
from urllib.error import URLError

import numpy as np
import torch
from torch import Tensor

from fedexp.data.archive import unpack
from fedexp.data.cache import cached
from fedexp.data.dataset import Dataset
from fedexp.data.mfcc import mfcc
from fedexp.data.transform import Transform
from fedexp.errors import ConfigError, require

KEYWORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
RATE = 16_000
_NAME = "speech_commands_v0.02"
_URL = f"http://download.tensorflow.org/data/{_NAME}.tar.gz"
_SHA256 = "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58"


def speech_commands(root: str, transform: Transform, download: bool = True, validation: bool = False) -> Dataset:
    """Features [n, 1, 50, 10] of one-second clips, each coefficient standardised by the training clips.

    Clips are split 80 : 10 : 10 by the data set's own rule, by speaker; the validation tenth is left out, or
    with `validation` added to the training clips. Speakers are the clients of partition=natural.
    ROOT may be the data set's folder, or contain it. Features are computed once and cached beside the clips.
    """
    needed = "computes its features with librosa, which is not installed: pip install the extra, fedexp[speech]"
    require(find_spec("librosa") is not None, "dataset", "speech_commands", needed)
    base = _find(Path(root).expanduser(), download)
    files = [sorted((base / word).glob("*.wav")) for word in KEYWORDS]
    missing = [word for word, clips in zip(KEYWORDS, files) if not clips]
    require(not missing, "dataset.root", root, f"{base} has no clips of: {', '.join(missing)}")
    clips = [file for word in files for file in word]
    labels = torch.arange(len(KEYWORDS)).repeat_interleave(torch.tensor([len(word) for word in files]))
    features = cached(base / ".fedexp-mfcc.pt", clips, lambda: _features(clips))
    part = np.array([_part(file) for file in clips])
    train = torch.from_numpy(part != 2 if validation else part == 0)
    test = torch.from_numpy(part == 2)
    require(bool(train.any() and test.any()), "dataset.root", root, "has no training or no test clips")
    mean, deviation = features[train].mean((0, 1)), features[train].std((0, 1), correction=0).clamp_min(1e-6)
    features = ((features - mean) / deviation).unsqueeze(1)
    speakers = np.unique([_speaker(file) for file, own in zip(clips, train) if own], return_inverse=True)[1]
    return Dataset(
        "speech_commands", features[train], labels[train], features[test], labels[test], len(KEYWORDS), transform,
        torch.from_numpy(speakers), list(KEYWORDS), base,
    )  # fmt: skip


def _find(root: Path, download: bool) -> Path:
    """The folder that has a folder for each word: ROOT, or below it under a usual name; otherwise it is downloaded."""
    places = [root, root / _NAME, root / "SpeechCommands" / _NAME]
    for place in places:
        if (place / KEYWORDS[0]).is_dir():
            return place
    by_hand = f"unpack {_URL} to {places[1]}, or pass dataset.root=FOLDER that holds it"
    require(download, "dataset.root", root, f"speech_commands is not there; {by_hand}, or dataset.download=true")
    archive = root / f"{_NAME}.tar.gz"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if archive.exists():
            require(
                _sha256(archive) == _SHA256, "dataset.root", root,
                f"{archive} is not the published archive, or cut short; delete it to download it again, or {by_hand}",
            )  # fmt: skip
        else:
            torch.hub.download_url_to_file(_URL, str(archive), hash_prefix=_SHA256)
        unpack(archive, places[1])
    except (RuntimeError, URLError, OSError, EOFError, TarError) as error:
        raise ConfigError(
            "dataset.root", root, f"speech_commands is neither there nor could it be downloaded ({error}); {by_hand}"
        ) from error
    return places[1]


def _sha256(archive: Path) -> str:
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _speaker(file: Path) -> str:
    """The part of a clip's name that names its speaker."""
    return file.name.partition("_nohash_")[0]


def _part(file: Path) -> int:
    """0 training, 1 validation, 2 test, by the data set's published rule: a hash of the speaker as a percentage."""
    largest = 2**27 - 1
    number = int(hashlib.sha1(_speaker(file).encode()).hexdigest(), 16)
    percentage = (number % (largest + 1)) * (100.0 / largest)
    return 1 if percentage < 10 else 2 if percentage < 20 else 0


def _features(files: list[Path], chunk: int = 512) -> Tensor:
    """Features [n, 50, 10], read and computed in chunks."""
    with ThreadPoolExecutor() as pool:
        parts = [
            mfcc(np.stack(list(pool.map(_read, files[start : start + chunk]))), RATE)
            for start in range(0, len(files), chunk)
        ]
    return torch.from_numpy(np.concatenate(parts)).float()


def _read(file: Path) -> np.ndarray:
    """One second of a clip in [-1, 1], cut off or padded with silence."""
    try:
        with wave.open(str(file)) as clip:
            form = (clip.getframerate(), clip.getnchannels(), clip.getsampwidth())
            require(form == (RATE, 1, 2), "dataset.root", file, "is not 16 kHz, one channel, 16 bits")
            said, data = min(RATE, clip.getnframes()), clip.readframes(RATE)
            require(len(data) == 2 * said, "dataset.root", file, f"is cut short: {len(data) // 2} of {said} samples")
            samples = np.frombuffer(data, dtype="<i2").astype(np.float32) / 2**15
    except (wave.Error, EOFError) as error:
        raise ConfigError("dataset.root", file, f"does not decode as a WAV file ({error})") from error
    return np.pad(samples, (0, RATE - len(samples)))
