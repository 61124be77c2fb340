"""Training that computes activations again: the same bits as without, from less memory."""

import gc
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.core.base.errors import ModelError, RunError
from taihu.worker.engine import (
    MODELS,
    BatchNorm,
    Conv2d,
    Dropout,
    GlobalAvgPool,
    Layer,
    Linear,
    MaxPool2d,
    Model,
    ReLU,
    Residual,
    Run,
    Sequential,
    StepContext,
    StepHooks,
)
from taihu.worker.engine.base.workspace import BufferPool
from taihu.worker.engine.recompute.kept_inputs import KeptInputs, SpilledInputs
from taihu.worker.engine.recompute.segments import Together, cut, memory, usual_segments

Array = NDArray[Any]

_EXAMPLES = settings(deadline=None, max_examples=60)
_FEW_EXAMPLES = settings(deadline=None, max_examples=6)
_CLASSES = 10
_SMALL = (6, 6, 3)


class Twice(Layer):
    """y = 2 x, written over the input where that is allowed: another forward of the same array is seen."""

    output_is_free = True
    gradient_is_free = True

    def build(self, name: str, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        self.name = name
        return input_shape

    def forward(self, x: Array, run: Run) -> Array:
        y = x if self.may_overwrite_input else self.workspace.take("output", x.shape, x.dtype)
        return np.multiply(x, 2, out=y)

    def backward(self, dy: Array, run: Run) -> Array:
        dx = dy if self.may_overwrite_gradient else self.workspace.take("input_gradient", dy.shape, dy.dtype)
        return np.multiply(dy, 2, out=dx)


class Addresses(Twice):
    """Records where its arrays lie."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self._seen = seen

    def forward(self, x: Array, run: Run) -> Array:
        y = super().forward(x, run)
        self._seen += [x.ctypes.data, y.ctypes.data]
        return y

    def backward(self, dy: Array, run: Run) -> Array:
        dx = super().backward(dy, run)
        self._seen += [dy.ctypes.data, dx.ctypes.data]
        return dx


def _layer(kind: str) -> Layer:
    """One that keeps the shape of images with three channels."""
    if kind == "residual":
        return Residual(Sequential([_layer("conv"), _layer("norm"), ReLU()]))
    if kind == "shortcut":
        return Residual(_layer("conv"), Sequential([_layer("conv"), Dropout(0.2)]))
    if kind == "chain":
        return Sequential([Twice(), _layer("norm"), _layer("residual")])
    plain = {
        "conv": Conv2d(3, 3, padding="same"),
        "norm": BatchNorm(),
        "relu": ReLU(),
        "drop": Dropout(0.3),
        "twice": Twice(),
        "pool": MaxPool2d(3, 1, padding=1),
    }
    return plain[kind]


_KINDS = st.sampled_from(["conv", "norm", "relu", "drop", "twice", "pool", "residual", "shortcut", "chain"])


def _chain(kinds: list[str]) -> Layer:
    return Sequential([*map(_layer, kinds), GlobalAvgPool(), Linear(_CLASSES, gain=1.0)])


def _model(root: Layer, shape: tuple[int, int, int]) -> tuple[Model, Array, Array]:
    model = Model(root, shape, _CLASSES)
    parameters, gradients = (np.full(model.layout.elements, np.nan, np.float32) for _ in range(2))
    model.bind(parameters, gradients)
    model.initialize(3)
    return model, parameters, gradients


def _batch(count: int, shape: tuple[int, int, int], seed: int = 0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((count, *shape), dtype=np.float32), generator.integers(0, _CLASSES, count)


def _training(step: int = 0) -> StepContext:
    return StepContext(training=True, seed=1, step=step, first_sample=4)


_EVALUATION = StepContext(training=False, seed=1, step=0, first_sample=0)


def _history(root: Layer, shape: tuple[int, int, int], recompute: dict[str, Any] | None) -> list[Any]:
    """All that three steps with batches of different sizes and evaluations between them compute."""
    model, parameters, gradients = _model(root, shape)
    if recompute is not None:
        model.recompute(**recompute)
    history: list[Any] = []
    for step, count in enumerate((3, 2, 4)):
        history.append(model.train(*_batch(count, shape, seed=step), _training(step), StepHooks()))
        # A step of a fixed length: values of deep chains without normalisation would grow beyond all bounds.
        parameters -= np.float32(0.02) * gradients / np.abs(gradients).max()
        history += [gradients.tobytes(), parameters.tobytes()]
        history += [(name, buffer.tobytes()) for name, buffer in model.buffers().items()]
        history.append(model.forward(_batch(5, shape, seed=9)[0], _EVALUATION).tobytes())
    return history


@_EXAMPLES
@given(st.lists(_KINDS, min_size=1, max_size=7), st.data())
def test_results_are_those_without_recomputing_wherever_the_chain_is_cut(
    kinds: list[str], data: st.DataObject
) -> None:
    layers = len(kinds) + 2
    cuts = data.draw(st.sets(st.integers(1, layers - 1)))
    recompute = {"segments": len(cuts) + 1, "spill": data.draw(st.booleans())}
    with patch("taihu.worker.engine.recompute.chain.cut", return_value=(0, *sorted(cuts), layers)):
        history = _history(_chain(kinds), _SMALL, recompute)
    assert history == _history(_chain(kinds), _SMALL, None)


@pytest.mark.parametrize(
    ("name", "shape"), [("resnet20", (8, 8, 3)), ("cifar10_quick", (12, 12, 3)), ("small_cnn", (8, 8, 1))]
)
def test_models_of_the_zoo_train_to_the_same_bits(name: str, shape: tuple[int, int, int]) -> None:
    expected = _history(MODELS[name](shape, _CLASSES), shape, None)
    layers = len(Model(MODELS[name](shape, _CLASSES), shape, _CLASSES).chain)

    @_FEW_EXAMPLES
    @given(st.none() | st.integers(1, layers), st.booleans())
    def compare(segments: int | None, spill: bool) -> None:
        recompute = {"segments": segments, "spill": spill}
        assert _history(MODELS[name](shape, _CLASSES), shape, recompute) == expected

    compare()


def test_a_step_that_was_broken_off_leaves_nothing_behind() -> None:
    kinds = ["conv", "norm", "drop", "conv", "relu"]
    model, _, gradients = _model(_chain(kinds), _SMALL)
    model.recompute(4, spill=True)
    batch = _batch(3, _SMALL)

    def fail(layer: int) -> None:
        raise RuntimeError

    for hooks in (StepHooks(before_layer=fail), StepHooks(before_recompute=fail), StepHooks(before_backward=fail)):
        with pytest.raises(RuntimeError):
            model.train(*batch, _training(), hooks)
    model.train(*batch, _training(), StepHooks())
    _, _, expected = other = _model(_chain(kinds), _SMALL)
    other[0].train(*batch, _training(), StepHooks())
    assert np.array_equal(gradients, expected)


def test_every_read_of_parameters_is_announced_and_every_gradient_once() -> None:
    shape = (8, 8, 3)
    model, _, expected = _model(MODELS["resnet20"](shape, _CLASSES), shape)
    batch = _batch(3, shape)
    model.train(*batch, _training(), StepHooks())
    model, parameters, gradients = _model(MODELS["resnet20"](shape, _CLASSES), shape)
    model.recompute(5)
    values, finished = parameters.copy(), np.full_like(gradients, np.nan)
    offsets = model.layout.offsets
    events: list[tuple[str, int]] = []

    def provide(what: str, index: int) -> None:
        # As in stage 3 of ZeRO: no other layer's parameters are here.
        events.append((what, index))
        part = slice(offsets[index], offsets[index + 1])
        parameters[...] = np.nan
        parameters[part] = values[part]

    def ready(index: int) -> None:
        events.append(("ready", index))
        part = slice(offsets[index], offsets[index + 1])
        finished[part] = gradients[part]
        gradients[...] = np.nan

    hooks = StepHooks(
        before_layer=lambda index: provide("forward", index),
        before_backward=lambda index: provide("backward", index),
        before_recompute=lambda index: provide("recompute", index),
        gradient_ready=ready,
        forwarded=lambda loss: events.append(("forwarded", 0)),
    )
    model.train(*batch, _training(), hooks)
    assert np.array_equal(finished, expected)
    layers = len(offsets) - 1
    backward = [event for event in events[layers + 1 :] if event[0] != "recompute"]
    assert events[: layers + 1] == [("forward", i) for i in reversed(range(layers))] + [("forwarded", 0)]
    assert backward == [(what, i) for i in range(layers) for what in ("backward", "ready")]
    again = [i for what, i in events if what == "recompute"]
    ready_before = [event for event in events[: events.index(("recompute", again[0]))] if event[0] == "ready"]
    assert 0 < len(ready_before) < layers
    assert sorted(again) == list(range(len(ready_before), layers))
    assert again == [i for first, last in model.run_again for i in reversed(range(first, last + 1))]
    assert all(events.index(("recompute", i)) < events.index(("backward", i)) for i in again)


def test_a_segment_is_computed_again_right_before_its_backward() -> None:
    model, _, _ = _model(Sequential([Conv2d(3, 1), Conv2d(3, 1), GlobalAvgPool(), Linear(_CLASSES)]), _SMALL)
    model.recompute(4)
    events: list[tuple[str, int]] = []
    hooks = StepHooks(
        before_backward=lambda index: events.append(("backward", index)),
        before_recompute=lambda index: events.append(("recompute", index)),
    )
    model.train(*_batch(2, _SMALL), _training(), hooks)
    assert events == [("backward", 0), ("recompute", 1), ("backward", 1), ("recompute", 2), ("backward", 2)]
    assert model.run_again == ((1, 1), (2, 2))


# n layers whose outputs have `_side`**2 * 4 * 4 bytes per sample; each also holds a gradient of that size.
_DEEP, _SIDE = 36, 64
_SAMPLE_BYTES = _SIDE * _SIDE * 4 * 4


def _deep() -> tuple[Model, Array, Array]:
    layers = [Conv2d(4, 1, bias=False) for _ in range(_DEEP)]
    return _model(Sequential([*layers, GlobalAvgPool(), Linear(_CLASSES)]), (_SIDE, _SIDE, 4))


def _activations(*, spill: bool) -> int:
    """The number of activations of a layer that are held: a segment's with their gradients, and the kept inputs."""
    segments = usual_segments(_DEEP + 2)
    of_pooling = 1  # its gradient, in the last segment
    return 2 * -(-_DEEP // segments) + of_pooling + (2 if spill else segments - 1)


@pytest.mark.parametrize("spill", [False, True])
def test_buffers_are_as_small_as_the_square_root_promises(spill: bool) -> None:
    batch = _batch(4, (_SIDE, _SIDE, 4))
    plain, _, _ = _deep()
    plain.train(*batch, _training(), StepHooks())
    assert plain.held_bytes >= (2 * _DEEP - 1) * 4 * _SAMPLE_BYTES
    model, _, _ = _deep()
    model.recompute(spill=spill)
    for step in range(2):
        model.train(*batch, _training(step), StepHooks())
        assert model.held_bytes <= (_activations(spill=spill) + 0.1) * 4 * _SAMPLE_BYTES
    held = model.held_bytes
    model.forward(_batch(8, (_SIDE, _SIDE, 4))[0], _EVALUATION)  # one layer's input and output, and no more
    assert model.held_bytes <= held + 8 * _SAMPLE_BYTES


# Each way of training in a fork of its own, so that what one has had is not there for the next.
_CHILDREN = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_recompute import StepHooks, _batch, _deep, _training

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))

def grown(mode, samples, side):
    model, _, _ = _deep()
    if mode != "none":
        model.recompute(spill=mode == "spill")
    model.train(*_batch(1, (side, side, 4)), _training(), StepHooks())  # everything is compiled
    batch = _batch(samples, (side, side, 4))
    before = status("VmRSS")
    for step in range(2):
        model.train(*batch, _training(step), StepHooks())
    return status("VmHWM") - before

for mode in ("none", "memory", "spill"):
    if os.fork() == 0:
        print(mode, grown(mode, int(sys.argv[2]), int(sys.argv[3])), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_resident_memory_falls_as_much() -> None:
    samples, slack = 48, 24 << 20
    command = [sys.executable, "-c", _CHILDREN, str(Path(__file__).parent), str(samples), str(_SIDE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    grown = {mode: int(size) for mode, size in map(str.split, done.stdout.splitlines())}
    assert grown["none"] >= 0.95 * 2 * _DEEP * samples * _SAMPLE_BYTES
    assert grown["memory"] <= _activations(spill=False) * samples * _SAMPLE_BYTES + slack
    assert grown["spill"] <= _activations(spill=True) * samples * _SAMPLE_BYTES + slack
    assert grown["spill"] < grown["memory"] < grown["none"] / 3


@pytest.mark.parametrize("spill", [False, True])
def test_no_step_but_the_first_allocates(spill: bool) -> None:
    seen: list[int] = []
    layers = [layer for _ in range(6) for layer in (Addresses(seen), Conv2d(4, 1), BatchNorm(), Addresses(seen))]
    model, _, _ = _model(Sequential([*layers, GlobalAvgPool(), Linear(_CLASSES)]), _SMALL)
    model.recompute(5, spill=spill)
    batch = _batch(3, _SMALL)
    model.train(*batch, _training(), StepHooks())
    held, steps = model.held_bytes, []
    for step in range(1, 4):
        seen.clear()
        model.train(*batch, _training(step), StepHooks())
        steps.append(tuple(seen))
        assert model.held_bytes == held
    assert steps[0] == steps[1] == steps[2]


@pytest.mark.parametrize("segments", [0, -1, 6])
def test_impossible_numbers_of_segments_are_refused(segments: int) -> None:
    model, _, _ = _model(_chain(["conv", "relu", "conv"]), _SMALL)
    message = "train.recompute_segments: expected 1 to 5, the number of layers of the model's outermost Sequential"
    with pytest.raises(ModelError, match=re.escape(f"{message}, seen {segments}; leave it out")):
        model.recompute(segments)


def test_a_front_is_cut_for_itself() -> None:
    """Layers from `stop` on are somebody else's: their gradient comes back from there."""
    model, _, _ = _model(_chain(["conv", "relu", "conv"]), _SMALL)
    message = "train.recompute_segments: expected 1 to 2, the number of layers before those that are sharded, seen 3"
    with pytest.raises(ModelError, match=re.escape(message)):
        model.recompute(3, stop=2)


_TOGETHER: tuple[Together, ...] = (sum, max)


@_EXAMPLES
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=8), st.data())
def test_no_cut_is_much_better(layers: list[tuple[int, int]], data: st.DataObject) -> None:
    sizes, inputs = [size for size, _ in layers], [0, *(kept for _, kept in layers[1:])]
    most = data.draw(st.integers(1, len(layers)))
    counts = range(data.draw(st.integers(1, most)), most + 1)
    together = data.draw(st.sampled_from(_TOGETHER))
    bounds = cut(sizes, inputs, together, counts)
    assert bounds[0] == 0
    assert bounds[-1] == len(sizes)
    assert all(start < stop for start, stop in pairwise(bounds))
    assert len(bounds) - 1 in counts
    every = [cuts for count in counts for cuts in combinations(range(1, len(sizes)), count - 1)]
    best = min(memory(sizes, inputs, together, (0, *cuts, len(sizes))) for cuts in every)
    assert best <= memory(sizes, inputs, together, bounds) <= best * (1 + 1 / 64)


def test_the_memory_of_a_cut() -> None:
    assert memory([5, 1, 2, 4], [0, 3, 7, 2], sum, (0, 1, 3, 4)) == 5 + 3 + 2
    assert memory([5, 1, 2, 4], [0, 3, 7, 2], max, (0, 1, 3, 4)) == 5 + 3
    assert [usual_segments(layers) for layers in (1, 2, 9, 23, 46)] == [1, 1, 3, 5, 7]


@_EXAMPLES
@given(st.lists(st.lists(st.integers(0, 5000), max_size=6), min_size=1, max_size=6))
def test_a_pool_hands_out_its_memory_again(passes: list[list[int]]) -> None:
    pool = BufferPool()
    workspaces = [pool.workspace() for _ in range(6)]
    for sizes in [*passes, *passes]:
        pool.reset()
        buffers = [
            workspace.take("key", (size,), np.uint8) for workspace, size in zip(workspaces, sizes, strict=False)
        ]
        for fill, buffer in enumerate(buffers):
            assert buffer.ctypes.data % 64 == 0
            buffer[...] = fill
        assert all((buffer == fill).all() for fill, buffer in enumerate(buffers))
        again = [each.take("key", (size,), np.uint8) for each, size in zip(workspaces, sizes, strict=False)]
        assert [each.ctypes.data for each in again] == [each.ctypes.data for each in buffers]
    pool.reset()
    assert pool.held_bytes == max(sum(max(1, -(-size // 64)) * 64 for size in sizes) for sizes in passes)


@_EXAMPLES
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50), st.sampled_from(["f4", "f8"])), min_size=1, max_size=7),
    st.booleans(),
)
def test_inputs_come_back_last_one_first(shapes: list[tuple[int, int, str]], spill: bool) -> None:
    kept = SpilledInputs() if spill else KeptInputs()
    for seed in range(2):
        generator = np.random.default_rng(seed)
        arrays = [generator.random((rows, columns)).astype(dtype) for rows, columns, dtype in shapes]
        kept.clear()
        for array in arrays:
            assert np.array_equal(kept.push(array), array)
        gradient = None
        for array in reversed(arrays):
            popped = kept.pop()
            assert popped.dtype == array.dtype
            assert np.array_equal(popped, array)
            assert gradient is None or (gradient == 7).all()  # what was popped before is the caller's
            gradient = popped
            gradient[...] = 7


@dataclass
class _OpenFile:
    descriptor: int
    size: int


def _files_in(folder: Path) -> Iterator[_OpenFile]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            if str(link.readlink()).startswith(str(folder)):
                yield _OpenFile(int(link.name), link.stat().st_size)
        except FileNotFoundError:
            continue


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_the_file_of_spilled_inputs_has_no_name_and_goes_with_the_model(folder: Path) -> None:
    model, _, _ = _model(_chain(["conv", "conv", "conv"]), _SMALL)
    model.recompute(5, spill=True)
    assert not list(folder.iterdir())
    model.train(*_batch(2, _SMALL), _training(), StepHooks())
    # Inputs of the second to fourth of five segments: the images stay where they are, the last one in memory.
    assert [file.size for file in _files_in(folder)] == [3 * 2 * 6 * 6 * 3 * 4]
    del model
    gc.collect()
    assert not list(_files_in(folder))


def test_a_full_disk_is_an_error_in_one_line(folder: Path) -> None:
    model, _, _ = _model(_chain(["conv", "conv", "conv"]), _SMALL)
    model.recompute(5, spill=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(RunError, match=r"cannot write the temporary file .* set TMPDIR to a"):
            model.train(*_batch(2, _SMALL), _training(), StepHooks())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    model.train(*_batch(2, _SMALL), _training(), StepHooks())


def test_a_folder_that_is_not_there_is_an_error_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "missing"))
    model, _, _ = _model(_chain(["conv"]), _SMALL)
    with pytest.raises(RunError, match=r"cannot make the temporary file of activations in .*missing"):
        model.recompute(2, spill=True)
