"""Mel-frequency cepstral coefficients of short clips, as keyword spotting uses them.

Zhao et al. (2018) give 10 coefficients, a 30 ms window and a 20 ms stride; 40 mel bands from 20 to 4,000 Hz
are those of their model's paper (Zhang et al. 2017). Windows are Hann, spectra of 512 points as powers,
bands triangular on the HTK mel scale, their logarithm floored at 1e-6, the cosine transform orthonormal.
"""

import numpy as np
from scipy.fft import dct

_POINTS, _BANDS, _LOWEST, _HIGHEST, _FLOOR = 512, 40, 20.0, 4000.0, 1e-6


def mfcc(sound: np.ndarray, rate: int, coefficients: int = 10, frames: int = 50) -> np.ndarray:
    """sound: [n, samples] in [-1, 1]; [n, frames, coefficients]. Silence follows where the last window needs it.

    A second at 16 kHz fills 49 windows; the fiftieth, which the paper has, is completed with 10 ms of silence.
    """
    window, stride = round(0.030 * rate), round(0.020 * rate)
    needed = window + (frames - 1) * stride
    sound = np.pad(sound, ((0, 0), (0, max(0, needed - sound.shape[1]))))[:, :needed]
    cut = np.lib.stride_tricks.sliding_window_view(sound, window, axis=1)[:, ::stride]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    power = np.abs(np.fft.rfft(cut * hann, _POINTS)) ** 2
    return dct(np.log(power @ _triangles(rate) + _FLOOR), norm="ortho")[..., :coefficients]


def _triangles(rate: int) -> np.ndarray:
    """Weight of each spectral line in each band: [points / 2 + 1, bands]."""
    lines = np.linspace(0, rate / 2, _POINTS // 2 + 1)
    corners = _hertz(np.linspace(_mel(_LOWEST), _mel(_HIGHEST), _BANDS + 2))
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    rising = (lines[:, None] - low) / (middle - low)
    falling = (high - lines[:, None]) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling))


def _mel(hertz: float) -> float:
    return 2595 * np.log10(1 + hertz / 700)


def _hertz(mel: np.ndarray) -> np.ndarray:
    return 700 * (10 ** (mel / 2595) - 1)
