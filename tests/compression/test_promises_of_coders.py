"""The suite that a stranger runs on a method that sends codes: each broken promise is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.commands import run_command

from taihu.core.compression.coder_conformance import CODER_PROMISES
from taihu.core.compression.coding import make_coder
from taihu.core.compression.conformance import Trial, broken_by
from taihu.core.compression.low_rank import LowRank
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.settings import CompressionSettings
from taihu.core.traits.methods import METHODS, POWERSGD, Method

Values = NDArray[np.float32]

OWN = Path(__file__).parents[1] / "traits" / "own" / "blocks.py"


class Right(LowRank):
    """As it should be."""

    @classmethod
    def of(cls, layout: Layout, settings: CompressionSettings, seed: int) -> LowRank:
        return cls(layout, settings.rank, seed)


class Forgetful(Right):
    """It holds nothing back."""

    def encode(self, layer: int, gradient: Values, codes: Values) -> None:
        self._residual[self._offsets[layer] : self._offsets[layer + 1]] = 0.0
        super().encode(layer, gradient, codes)


class Diverging(Right):
    """Each worker has a scale of its own."""

    def decode(self, layer: int, codes: Values, gradient: Values) -> None:
        super().decode(layer, codes, gradient)
        gradient *= np.float32(1.0) + np.float32(id(self) % 1000) * np.float32(1e-6)


class Drawing(Right):
    """It draws without a seed."""

    def encode(self, layer: int, gradient: Values, codes: Values) -> None:
        super().encode(layer, gradient + np.float32(np.random.default_rng().random()), codes)


class Scribbling(Right):
    """It changes the gradient that it is given."""

    def encode(self, layer: int, gradient: Values, codes: Values) -> None:
        super().encode(layer, gradient, codes)
        gradient[:] = 0.0


class Unkept(Right):
    """Checkpoints do not have its Q."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {**super().arrays(), "right": self._right[:0]}


class Lost(Right):
    """It goes on from a Q alone."""

    def resume(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        if len(arrays["right"]):
            super().resume(arrays)


class Trusting(Right):
    """It takes whatever comes."""

    def resume(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        count = min(len(arrays["residual"]), len(self._residual))
        self._residual[:count] = arrays["residual"][:count]


class Deaf(Right):
    """Rates are nothing to it."""

    def follow_rates(self, rates: NDArray[np.float64]) -> None: ...


class Silent(Right):
    """It leaves out values that are not finite."""

    def encode(self, layer: int, gradient: Values, codes: Values) -> None:
        super().encode(layer, np.nan_to_num(gradient), codes)


class Hoarding(Right):
    """It sends a tenth of what it should, and holds the rest back."""

    def encode(self, layer: int, gradient: Values, codes: Values) -> None:
        super().encode(layer, gradient, codes)
        codes[self.layout.offsets[layer] : self.layout.offsets[layer + 1]] *= np.float32(0.1)


class Wordy(Right):
    """It has a layer too many."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.layout = Layout((*self.layout.layers, LayerSpec("more", (TensorSpec("all", (3,)),))))


def coded_by(made: type[Right]) -> Method:
    return replace(POWERSGD, key=made.__name__, codes=f"{__name__}:{made.__name__}.of")


@pytest.mark.parametrize("method", [method for method in METHODS if method.codes], ids=str)
@pytest.mark.parametrize("seed", [0, 3])
def test_the_built_in_methods_keep_all_promises(method: Method, seed: int) -> None:
    trial = Trial(method, seed=seed)
    assert [(promise.words, fault) for promise in CODER_PROMISES if (fault := broken_by(promise, trial))] == []


@pytest.mark.parametrize(
    ("made", "promise", "words"),
    [
        (Wordy, 0, "its layout has 9 layers: expected one for each of 5, and 3 late ones"),
        (Forgetful, 1, "away from what was brought"),
        (Diverging, 2, "workers decode the same codes to other bits"),
        (Drawing, 3, "brings something else the second time"),
        (Scribbling, 3, "encode changes the gradient that it is given"),
        (Unkept, 4, "must be in arrays()"),
        (Lost, 5, "are lost where all other arrays have no values"),
        (Trusting, 6, "it goes on from a state of other gradients"),
        (Deaf, 7, "the rate came to 0.5: expected 0.25 of what was held back"),
        (Silent, 8, "a gradient with nan in layer 0 does not reach all workers"),
        (Hoarding, 1, "away from what was brought"),
    ],
)
def test_a_broken_promise_is_found(made: type[Right], promise: int, words: str) -> None:
    assert words in broken_by(CODER_PROMISES[promise], Trial(coded_by(made)))


def test_a_coder_that_waits_for_ever_is_found(tmp_path: Path) -> None:
    """The present block never changes: all others are held back."""
    (tmp_path / "mine.py").write_text(OWN.read_text().replace("int(self._turns[layer]) % COUNT", "0"))
    done = run_command("taihu", "dev", "check-compressor", "mine.py:METHOD", folder=tmp_path)
    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if line.startswith("BROKEN")] == [
        "BROKEN  nothing is held back for ever"
    ]
    assert "of the same gradient in 200 steps" in done.stderr


def test_the_command_checks_a_coder_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.read_text())
    done = run_command("taihu", "dev", "check-compressor", "mine.py:METHOD", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *(f"kept    {promise.words}" for promise in CODER_PROMISES),
        f"method blocks keeps all {len(CODER_PROMISES)} promises",
    ]


def test_settings_reach_the_coder() -> None:
    """The factory gets the whole section, of which the rank is PowerSGD's."""
    layout = Layout((LayerSpec("w", (TensorSpec("w", (20, 30)),)),))
    sizes = {}
    for rank in (1, 3):
        coder = make_coder(layout, CompressionSettings(method=POWERSGD, rank=rank), 0)
        assert coder is not None
        sizes[rank] = coder.layout.elements
    assert sizes == {1: 50, 3: 150}
    assert make_coder(layout, CompressionSettings(), 0) is None
