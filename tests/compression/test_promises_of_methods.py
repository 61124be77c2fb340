"""The suite that a stranger runs on a method: the built-in ones keep all promises, and each broken one is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.commands import run_command

from taihu.core.compression.conformance import PROMISES, Trial, broken_by
from taihu.core.compression.methods import kept_elements
from taihu.core.compression.selecting import accumulate
from taihu.core.compression.state import CompressionState
from taihu.core.traits.methods import DLGS, LAGS, METHODS, Method
from taihu.kernels.selection.unit_select import Arenas, Rule

Part = tuple[NDArray[np.int32], NDArray[np.float32]]
Choose = Callable[[NDArray[np.float32], int, int, Any], NDArray[np.int64]]

SELECTING = [method for method in METHODS if method.selects]
OWN = Path(__file__).parents[1] / "traits" / "own" / "random_k.py"


@pytest.mark.parametrize("method", [*SELECTING, replace(DLGS, key="by group", unit="group")], ids=str)
@pytest.mark.parametrize("density", [0.004, 0.1, 1.0])
def test_the_built_in_methods_keep_all_promises(method: Method, density: float) -> None:
    trial = Trial(method, density, seed=3)
    assert [(promise.words, fault) for promise in PROMISES if (fault := broken_by(promise, trial))] == []


def select(  # noqa: PLR0917 - what one selection takes
    choose: Choose,
    state: CompressionState,
    units: range,
    step: int,
    arenas: Arenas,
    rule: Rule,
    indices: NDArray[np.int32],
    values: NDArray[Any],
) -> int:
    """A right selection of the places that `choose` gives, each of one unit."""
    count = 0
    for number in units:
        unit = state.units[number]
        part = slice(unit.start, unit.stop)
        accumulate(Arenas(*(array[part] for array in arenas)), rule)
        kept = kept_elements(rule.share, unit.elements)
        own = unit.start + np.sort(choose(arenas.residual[part], kept, step, state))
        indices[count : count + len(own)] = own
        if len(values):
            values[count : count + len(own)] = arenas.residual[own]
            arenas.residual[own] = 0.0
        state.outcomes.kept[number], state.outcomes.selected[number] = kept, len(own)
        count += len(own)
    return count


def largest(owed: NDArray[np.float32], kept: int, step: int, state: Any) -> NDArray[np.int64]:
    return np.argsort(-np.nan_to_num(np.abs(owed), nan=np.inf), kind="stable")[:kept]


def right(*arguments: Any) -> int:
    return select(largest, *arguments)


def loses_a_value(*arguments: Any) -> int:
    count = right(*arguments)
    arguments[6][0] = 0.0
    return count


def sends_and_keeps(*arguments: Any) -> int:
    count = right(*arguments)
    indices, values = arguments[5:]
    if len(values) and count:
        arguments[3].residual[indices[0]] = values[0]
    return count


def forgets_momentum(*arguments: Any) -> int:
    rule = arguments[4]
    return right(*arguments[:4], rule._replace(momentum=0.0, weight_decay=0.0), *arguments[5:])


def moves_what_is_to_be_rounded(*arguments: Any) -> int:
    count = right(*arguments)
    if not len(arguments[6]):
        arguments[3].residual[arguments[5][:count]] *= 0.5
    return count


def touches_others(*arguments: Any) -> int:
    if arguments[1].start:
        arguments[3].residual[0] += 1.0
    return right(*arguments)


def turns_positions_around(*arguments: Any) -> int:
    count = right(*arguments)
    arguments[5][:count] = arguments[5][:count][::-1].copy()
    arguments[6][:count] = arguments[6][:count][::-1].copy()
    return count


def tells_too_many(*arguments: Any) -> int:
    count = right(*arguments)
    arguments[0].outcomes.selected[arguments[1].start] += 1
    return count


def sends_too_much_of_one(*arguments: Any) -> int:
    shares = {40: 7, 7: 0}
    return select(lambda owed, kept, *_: np.arange(shares.get(len(owed), kept)), *arguments)


def sends_nothing(*arguments: Any) -> int:
    return select(lambda *_: np.arange(0), *arguments)


def sends_the_first(*arguments: Any) -> int:
    return select(lambda owed, kept, *_: np.arange(kept), *arguments)


DRAWN = np.random.default_rng(1)
CALLS: dict[int, int] = {}


def draws_without_a_seed(*arguments: Any) -> int:
    return select(lambda owed, kept, *_: DRAWN.choice(len(owed), kept, replace=False), *arguments)


def counts_calls_beside_the_state(*arguments: Any) -> int:
    def choose(owed: NDArray[np.float32], kept: int, step: int, state: Any) -> NDArray[np.int64]:
        calls = CALLS[id(state)] = CALLS.get(id(state), 0) + 1
        return (calls * 7 + np.arange(kept)) % len(owed)

    return select(choose, *arguments)


BALANCE, MOMENTUM, ROUNDED, OTHERS, SAME, GOES_ON, PLAN, FINITE, SHARE, EVER, _ = (each.words for each in PROMISES)


def method_of(function: Callable[..., int]) -> Method:
    return replace(LAGS, key=function.__name__, selection=f"{__name__}:{function.__name__}")


def test_a_right_selection_in_numpy_keeps_all_promises() -> None:
    assert [broken_by(promise, Trial(method_of(right))) for promise in PROMISES] == [""] * len(PROMISES)


@pytest.mark.parametrize(
    ("function", "promise", "words"),
    [
        (loses_a_value, BALANCE, "was owed, 0 is sent and 0 held back"),
        (sends_and_keeps, BALANCE, "was owed"),
        (forgets_momentum, MOMENTUM, "was owed"),
        (moves_what_is_to_be_rounded, ROUNDED, "was owed"),
        (touches_others, OTHERS, "the residual of other groups changed with group 1"),
        (turns_positions_around, BALANCE, "positions do not ascend, or some come twice"),
        (tells_too_many, BALANCE, "its selection returned 5 entries and told of 6 in outcomes.selected"),
        (sends_too_much_of_one, BALANCE, "7 entries of layer0 in group 0: there is room for 5 of 40 at density 0.1"),
        (sends_nothing, SHARE, "0 entries in 20 steps"),
        (sends_the_first, EVER, "some entries never go"),
        (draws_without_a_seed, SAME, "of the same gradients sends something else the second time"),
        (counts_calls_beside_the_state, GOES_ON, "must be in the state"),
    ],
)
def test_a_broken_promise_is_found(function: Callable[..., int], promise: str, words: str) -> None:
    checked = next(each for each in PROMISES if each.words == promise)
    assert words in broken_by(checked, Trial(method_of(function)))


def test_the_command_checks_a_file_of_ones_own(tmp_path: Path) -> None:
    text = OWN.read_text()
    (tmp_path / "mine.py").write_text(text)
    done = run_command("taihu", "dev", "check-compressor", "mine.py:METHOD", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f"method random-k keeps all {len(PROMISES)} promises at density 0.1"
    assert lines[:-1] == [f"kept    {promise.words}" for promise in PROMISES]
    (tmp_path / "worse.py").write_text(text.replace("arenas.residual[own] = 0.0", "pass"))
    done = run_command("taihu", "dev", "check-compressor", "worse.py:METHOD", folder=tmp_path)
    assert done.returncode == 1
    assert f"BROKEN  {BALANCE}" in done.stdout
    assert re.search(rf"^error: method random-k: {re.escape(BALANCE)}: .* was owed", done.stderr, re.MULTILINE)
    (tmp_path / "wrong.py").write_text(text.replace("count = 0\n", "count = 0 / 0\n", 1))
    done = run_command("taihu", "dev", "check-compressor", "wrong.py:METHOD", folder=tmp_path)
    assert done.returncode == 1
    assert "wrong.py line 27: ZeroDivisionError: division by zero" in done.stderr
    done = run_command("taihu", "dev", "check-compressor", "dlgs", "--density", "0", folder=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "error: --density 0: expected a share above 0 and at most 1",
    )
