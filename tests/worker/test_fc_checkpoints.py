"""Runs that spread layers over their workers go on from checkpoints: with the same bits, and with other numbers."""

from __future__ import annotations

import json
from functools import cache
from operator import itemgetter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from support.made_checkpoints import make_checkpoint
from support.whole_run import run_here
from support.worker import Values

from taihu.core.base.errors import ModelError
from taihu.core.checkpoint.files import open_part, write_part
from taihu.core.checkpoint.manifest import Manifest
from taihu.core.checkpoint.part import Elements, Part, State
from taihu.core.checkpoint.reading import Checkpoint, open_checkpoint
from taihu.core.checkpoint.resharding import reshard
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.fc_mode import FcLinks
from taihu.worker.engine import BatchNorm, Conv2d, Flatten, Layer, Linear, Model, ReLU, Sequential
from taihu.worker.fc import probe
from taihu.worker.saved.beginning import begin_from
from taihu.worker.saved.exporting import export_model
from taihu.worker.saved.reading import load_model
from taihu.worker.saved.sources import CheckpointSource

# Runs that several tests compare are made once, in one process.
pytestmark = pytest.mark.xdist_group("checkpoints of spread layers")

COMMON = ("train.batch=8", "optimizer.learning_rate=0.003", "checkpoint.every_steps=2", "train.evaluate=false")
SHARD = "exchange.fc=shard"
RING = "exchange.kind=ring"
ADAM = "optimizer.name=adam"
DLGS = ("compression.method=dlgs", "compression.density=0.1", "exchange.plan=bucket:50kB")
STEPS, KEPT = 4, 2

WAYS = {
    "servers": (),
    "servers, sums": ("exchange.zero=0",),
    "servers, slices": ("exchange.zero=2", "exchange.fc_scheme=slices", "exchange.fc_inputs=own"),
    "servers, Adam, bf16, stage 3": ("exchange.zero=3", ADAM, "train.precision=bf16", "train.recompute=memory"),
    "servers, compressed": DLGS,
    "ring": (RING, "exchange.fc_scheme=turns", "exchange.fc_update=pass"),
    "ring, Adam": (RING, "exchange.zero=1", ADAM),
    "ring, spilled": (RING, "exchange.zero=2", "exchange.fc_inputs=spilled", "train.recompute=spill"),
    "ring, Adam, bf16, stage 3": (RING, "exchange.zero=3", ADAM, "train.precision=bf16"),
    "ring, compressed": (RING, *DLGS),
}


@cache
def undisturbed(*assignments: str) -> tuple[dict[str, Any], Path]:
    """The results of a whole run, and the folder of its checkpoints and its model."""
    folder = Path(mkdtemp())
    keeping = (f"checkpoint.dir={folder}", f"train.steps={STEPS}")
    return run_here(*COMMON, *keeping, *assignments, model=folder / "model.safetensors"), folder


def checkpoint_of(*assignments: str) -> Checkpoint:
    return CheckpointStore(undisturbed(*assignments)[1]).open(KEPT)


def resumed(checkpoint: Checkpoint, *assignments: str) -> dict[str, Any]:
    return run_here(*COMMON, f"train.steps={STEPS}", f"checkpoint.resume={checkpoint.folder}", *assignments)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_run_goes_on_with_the_bits_of_one_that_was_not_interrupted(way: tuple[str, ...]) -> None:
    whole, _ = undisturbed(SHARD, *way)
    checkpoint = checkpoint_of(SHARD, *way)
    checkpoint.verify()
    assert {each.layer.name for each in checkpoint.spread} == {"fc1", "fc2"}
    assert len({entry.name for member, entry in checkpoint.manifest.files.items() if "worker" in member}) == 3
    assert resumed(checkpoint, SHARD, *way)["parameters_sha256"] == whole["parameters_sha256"]


def model_of(folder: Path, *layers: Layer) -> str:
    """The setting of a model of these layers; code would be executed by all workers of this process at once."""
    path = folder / "layers.json"
    path.write_text(json.dumps(Sequential(list(layers)).definition()))
    return f"model.name={path}"


def test_running_moments_are_kept_beside_columns(tmp_path: Path) -> None:
    """Between two layers that are spread is one that is too narrow for it."""
    layers = (Conv2d(2, 3), BatchNorm(), ReLU(), Flatten(), Linear(9), ReLU(), Linear(2), ReLU(), Linear(10))
    job = (SHARD, model_of(tmp_path, *layers))
    whole, folder = undisturbed(*job)
    assert {each.layer.name for each in checkpoint_of(*job).spread} == {"fc1", "fc3"}
    assert resumed(checkpoint_of(*job), *job)["parameters_sha256"] == whole["parameters_sha256"]
    export_model(CheckpointStore(folder).open(STEPS), tmp_path / "exported.safetensors")
    assert (tmp_path / "exported.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_the_model_of_a_checkpoint_is_that_of_the_run(tmp_path: Path) -> None:
    """Whole layers, in the order of the model, from whichever files have their columns."""
    _, folder = undisturbed(SHARD)
    checkpoint = CheckpointStore(folder).open(STEPS)
    export_model(checkpoint, tmp_path / "exported.safetensors")
    assert (tmp_path / "exported.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    anew = open_checkpoint(reshard(checkpoint, tmp_path / "moved", servers=0, workers=5))
    assert {each.layer.name for each in anew.spread} == {"fc1", "fc2"}
    expected = load_model(folder / "model.safetensors").parameters
    for place in (checkpoint.folder, anew.folder):
        assert load_model(place).parameters.tobytes() == expected.tobytes()


def tensors_of(layout: Layout, arena: Values) -> dict[tuple[str, str], Values]:
    """The tensors of an arena."""
    specs = [(layer.name, tensor) for layer in layout.layers for tensor in layer.tensors]
    pieces = np.split(arena, np.cumsum([tensor.elements for _, tensor in specs])[:-1])
    return {
        (layer, tensor.name): each.reshape(tensor.shape) for (layer, tensor), each in zip(specs, pieces, strict=True)
    }


def whole_values(checkpoint: Checkpoint, states: list[State], name: str) -> Values:
    """An array of all layers, put together by NumPy from what all members have."""
    arena = np.full(checkpoint.manifest.layout.elements, np.nan, np.float32)
    columns: dict[tuple[str, str], list[tuple[int, Values]]] = {}
    for state in states:
        if name in state.shared.arrays:
            numbers = [np.arange(start, stop) for start, stop in state.shared.bounds]
            arena[np.concatenate(numbers)] = state.shared.arrays[name]
        own = [
            LayerSpec(layer.name, tuple(TensorSpec(t.name, (*t.shape[:-1], len(columns))) for t in layer.tensors))
            for layer, columns in ((each.layer, each.columns) for each in state.columns.layers)
        ]
        starts = {each.layer.name: each.columns.start for each in state.columns.layers}
        for key, values in tensors_of(Layout(tuple(own)), state.columns.arrays[name]).items() if own else ():
            columns.setdefault(key, []).append((starts[key[0]], values))
    tensors = tensors_of(checkpoint.manifest.layout, arena)
    for key, parts in columns.items():
        tensors[key] = np.concatenate([values for _, values in sorted(parts, key=itemgetter(0))], axis=-1)
    return np.concatenate(
        [
            tensors[layer.name, tensor.name].reshape(-1)
            for layer in checkpoint.layout.layers
            for tensor in layer.tensors
        ]
    )


def assembled(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    """The checkpoint as one worker that spreads nothing would have written it."""
    states: list[State] = []
    for member in checkpoint.manifest.files:
        with open_part(checkpoint.file_of(member)) as part:
            states.append(part.state())
    first = next(state for state in states if "model" in state.facts)
    arrays = {name: whole_values(checkpoint, states, name) for name in first.columns.arrays}
    assert len(arrays) > 1
    store, layout = CheckpointStore(folder), checkpoint.layout
    held = Elements(np.array([[0, layout.elements]]), arrays)
    file = write_part(store.folder_of(KEPT), Part("worker 0", KEPT, State(held, first.own, first.facts)))
    counts = {"servers": 0, "workers": 1, "files": Manifest.entries({"worker 0": file})}
    changes = {**counts, "layers": Manifest.layers_of(layout), "groups": [(0, len(layout.layers) - 1)]}
    store.commit(checkpoint.manifest.model_copy(update=changes))
    return store.open(KEPT)


@pytest.mark.parametrize("way", ["servers", "ring, Adam"])
def test_layers_are_spread_over_others_and_not_at_all_and_back(way: str, tmp_path: Path) -> None:
    """Parameters and optimizer state are the same bits: what follows is what follows from whole layers."""
    job = WAYS[way]
    checkpoint, whole = checkpoint_of(SHARD, *job), undisturbed(SHARD, *job)[0]
    by_hand = assembled(checkpoint, tmp_path / "by hand")
    # To as many workers as before, whose run then ends with the same bits.
    assert resumed(by_hand, SHARD, *job)["parameters_sha256"] == whole["parameters_sha256"]
    moved = open_checkpoint(reshard(checkpoint, tmp_path / "moved", servers=3, workers=5))
    assert resumed(moved, SHARD, *job)["parameters_sha256"] == whole["parameters_sha256"]
    # To others.
    for fc in (SHARD, "exchange.fc=data"):
        ends = {resumed(each, fc, *job, "cluster.workers=2")["parameters_sha256"] for each in (checkpoint, by_hand)}
        assert len(ends) == 1
    # To one, which spreads nothing.
    alone = [resumed(each, SHARD, *job, "cluster.workers=1") for each in (checkpoint, by_hand)]
    assert (alone[0]["fc"], alone[0]["parameters_sha256"]) == (None, alone[1]["parameters_sha256"])


def test_compressed_layers_are_spread_and_back() -> None:
    spread, data = (SHARD, *DLGS), ("exchange.fc=data", *DLGS)
    for before, after in ((spread, data), (data, spread)):
        for workers in ("cluster.workers=3", "cluster.workers=2"):
            results = resumed(checkpoint_of(*before), *after, workers)
            assert results["steps"] == STEPS
            assert np.isfinite(results["final_loss"])


def test_what_was_chosen_by_measuring_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever links do now: other layers would lead to other bits."""
    fast_shards, fast_exchange = FcLinks(0.0, 1.0, 0.0), FcLinks(1.0, 0.0, 0.0)
    for links, others in ((fast_shards, fast_exchange), (fast_exchange, fast_shards)):
        auto = ("exchange.fc=auto", f"train.seed={links.exchange_seconds:.0f}")
        monkeypatch.setattr(probe, "probe_links", lambda *_, links=links: links)
        whole, _ = undisturbed(*auto)
        first = ["fc1", "fc2"] if links is fast_shards else []
        assert [each.layer.name for each in checkpoint_of(*auto).spread] == first
        monkeypatch.setattr(probe, "probe_links", lambda *_, others=others: others)
        on = resumed(checkpoint_of(*auto), *auto)
        assert on["parameters_sha256"] == whole["parameters_sha256"]
        # Others measure anew.
        fewer = resumed(checkpoint_of(*auto), *auto, "cluster.workers=2")
        assert (fewer["fc"] is None) == (others is fast_exchange)
        assert (on["fc"] is None) == (links is fast_exchange)


def test_another_model_is_refused(tmp_path: Path) -> None:
    """One with layers of other shapes, and one that lacks a layer, which none of its own tell."""
    setting = model_of(tmp_path, Conv2d(16, 3, padding=1), ReLU(), Flatten(), Linear(20), ReLU(), Linear(10))
    with pytest.raises(ModelError, match=r"checkpoint.resume .* train the model that it holds"):
        resumed(checkpoint_of(SHARD), SHARD, setting)
    model = Model(Sequential([Flatten(), Linear(3), ReLU(), Linear(2)]), (2, 2, 1), 2)
    begin_from(CheckpointSource(make_checkpoint(tmp_path / "same", model.layout, servers=1)), model, ())
    more = Layout((*model.layout.layers, LayerSpec("conv1", (TensorSpec("weight", (3, 3, 1, 1)),))))
    for spread in ((), ("conv1",)):
        source = CheckpointSource(
            make_checkpoint(tmp_path / f"more{len(spread)}", more, servers=1, workers=1, spread=spread)
        )
        with pytest.raises(ModelError, match=r"conv1/weight is not in the model; train the model that it holds"):
            begin_from(source, model, ())
