"""The charts' colours can be told apart, also by those who see no red or no green."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import opentab.server.webfiles

STYLE = Path(opentab.server.webfiles.FOLDER / "style.css").read_text()
DISTANCE_MIN = 20.0  # CIELAB; 2.3 is what an eye can just notice side by side
CONTRAST_MIN = 3.0  # WCAG 1.4.11, for graphics
# Machado, Oliveira, Fernandes (2009): full protanopia and deuteranopia, on linear RGB.
SIGHT = {
    "all colours": np.eye(3),
    "no red": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "no green": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
}  # fmt: skip
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip


def colours(scheme: str) -> dict[str, str]:
    """The custom properties of a colour scheme."""
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)", 1)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return found if scheme == "light" else {**found, **dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark))}


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    ratio = TO_XYZ @ rgb / TO_XYZ.sum(axis=1)
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_any_two_series_can_be_told_apart(scheme: str, sight: str) -> None:
    series = {name: code for name, code in colours(scheme).items() if name.startswith("series-")}
    seen = {name: lab(np.clip(SIGHT[sight] @ linear(code), 0, 1)) for name, code in series.items()}
    distances = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2)}
    assert len(series) == 9
    assert {pair: distance for pair, distance in distances.items() if distance < DISTANCE_MIN} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_series_stands_out_from_the_card(scheme: str) -> None:
    known = colours(scheme)

    def contrast(one: str, other: str) -> float:
        bright, dim = sorted((float(TO_XYZ[1] @ linear(each)) for each in (one, other)), reverse=True)
        return (bright + 0.05) / (dim + 0.05)

    found = {name: contrast(code, known["surface"]) for name, code in known.items() if name.startswith("series-")}
    assert {name: value for name, value in found.items() if value < CONTRAST_MIN} == {}
