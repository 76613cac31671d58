"""Mel-frequency cepstral coefficients of short clips, as keyword spotting uses them, through librosa.

Zhao et al. (2018) give 10 coefficients, a 30 ms window and a 20 ms stride; 40 mel bands from 20 to 4,000 Hz
are those of their model's paper (Zhang et al. 2017). Windows are Hann windows, spectra are powers at 512 points,
bands are triangular on the HTK mel scale, 1e-6 is added before the logarithm, the cosine transform is orthonormal.
"""

import numpy as np

_POINTS, _BANDS, _LOWEST, _HIGHEST, _FLOOR = 512, 40, 20.0, 4000.0, 1e-6


def mfcc(sound: np.ndarray, rate: int, coefficients: int = 10, frames: int = 50) -> np.ndarray:
    """Features [n, frames, coefficients] of sound [n, samples] in [-1, 1], padded with silence for the last window.

    A second at 16 kHz fills 49 windows; the fiftieth, which the paper has, is completed with 10 ms of silence.
    """
    import librosa  # imported only here: it takes seconds, and is an optional extra

    window, stride = round(0.030 * rate), round(0.020 * rate)
    beside = (_POINTS - window) // 2  # librosa centres a window within the points of its spectrum
    needed = window + (frames - 1) * stride
    sound = np.pad(sound, ((0, 0), (0, max(0, needed - sound.shape[1]))))[:, :needed]
    bands = librosa.feature.melspectrogram(
        y=np.pad(sound, ((0, 0), (beside, beside))), sr=rate, n_fft=_POINTS, win_length=window, hop_length=stride,
        center=False, n_mels=_BANDS, fmin=_LOWEST, fmax=_HIGHEST, htk=True, norm=None,
    )  # fmt: skip
    return librosa.feature.mfcc(S=np.log(bands + _FLOOR), n_mfcc=coefficients).swapaxes(1, 2)
