"""Files that others may have written: jobs, checkpoints, saved models, runs, histories, machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from benchmarks.inputs.fuzzing.target import Target
from taihu.core.base.errors import CheckpointError, ConfigError, ModelError
from taihu.core.base.tensor_file import TensorSlot, header_of, write_values
from taihu.core.checkpoint.files import file_name, open_part, write_part
from taihu.core.checkpoint.manifest import parse_manifest
from taihu.core.checkpoint.part import Columns, Elements, Part, State
from taihu.core.history.files import read_histories
from taihu.core.history.records import Begin, End, Read, Record, Skip, Update
from taihu.core.job.reading import load_job
from taihu.core.planner.profile import LayerCost, LinearCost, LinkCost, Profile
from taihu.core.trace.parts import read_part
from taihu.report.page import page_of
from taihu.report.reading import read_run
from taihu.simulation.machine_file import EXAMPLE, machines_in
from taihu.worker.engine import build_model
from taihu.worker.saved.metadata import SavedModel
from taihu.worker.saved.reading import load_model
from taihu.worker.saved.writing import METADATA_KEY

__all__ = ["TARGETS"]

_RUN_FILES: Final = ("results.json", "steps.csv", "epochs.csv", "settings.toml", "events.jsonl", "trace.json")
_PRINTABLE: Final = (ConfigError, ModelError, CheckpointError)


def _on_file(name: str, read: Callable[[Path], object]) -> Callable[[Path], Callable[[bytes], object]]:
    """A target of what reads a file."""

    def make(folder: Path) -> Callable[[bytes], object]:
        path = folder / name

        def call(data: bytes) -> object:
            path.write_bytes(data)
            return read(path)

        return call

    return make


def _stored(path: Path) -> object:
    with open_part(path) as part:
        return part.state()


def _part_of_a_trace(path: Path) -> object:
    try:
        return read_part(path)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(repr(error)) from None


def _manifest(_: Path) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        manifest = parse_manifest(data)
        return manifest.layout.elements, manifest.size_bytes

    return call


def _machines(_: Path) -> Callable[[bytes], object]:
    return lambda data: machines_in(data.decode("latin-1"), "machines.toml")


def _profile(_: Path) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        try:
            said = json.loads(data)
        except (ValueError, RecursionError):
            raise ConfigError("not JSON") from None
        return Profile.from_json(said)

    return call


def _run(folder: Path) -> Callable[[bytes], object]:
    """A run's folder of which one file is changed, which the first byte of an input names; and its page."""
    for name, text in _RUN.items():
        (folder / name).write_bytes(text)

    def call(data: bytes) -> object:
        name = _RUN_FILES[data[0] % len(_RUN_FILES)] if data else _RUN_FILES[0]
        (folder / name).write_bytes(data[1:])
        try:
            return page_of(read_run(folder))
        finally:
            (folder / name).write_bytes(_RUN[name])

    return call


_SPREAD: Final = {"min": 0.1, "median": 0.2, "max": 0.4}
_RESULTS: Final = {
    "format": "taihu results 1",
    "name": "demo",
    "steps": 2,
    "servers": 1,
    "workers": 2,
    "exchange": "server",
    "compression": "none",
    "groups": [[0, 0], [1, 2]],
    "layers": [["fc2", 650], ["fc1", 32832], ["conv", 160]],
    "final_loss": 0.5,
    "test_accuracy": 0.9,
    "seconds_per_step": _SPREAD,
    "seconds_compute": _SPREAD,
    "seconds_wait": _SPREAD,
    "bytes_sent_per_step": 1000,
    "predicted_seconds_per_step": 0.2,
    "by_rank": [{"rank": rank, "seconds_per_step": _SPREAD, "seconds_compute": _SPREAD} for rank in range(2)],
}
_RUN: Final = {
    "results.json": json.dumps(_RESULTS).encode(),
    "steps.csv": b"step,seconds,loss\n1,0.5,2.0\n2,0.25,1.5\n",
    "epochs.csv": b"step,accuracy\n2,0.5\n",
    "settings.toml": b'[model]\nname = "small_cnn"\n',
    "events.jsonl": b'{"time": "2026-01-01T00:00:00", "event": "started"}\n',
    "trace.json": json.dumps(
        {"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1, "args": {"step": 1}}]}
    ).encode(),
}


def _written(write: Callable[[Path], Path]) -> bytes:
    """The bytes of a file that is written."""
    with TemporaryDirectory() as folder:
        return write(Path(folder)).read_bytes()


def _part(folder: Path) -> Path:
    shared = Elements(np.array([[0, 4]], dtype=np.int64), {"parameters": np.ones(4, dtype=np.float32)})
    write_part(folder, Part("server 0", 3, State(shared, {"rng": np.ones(2)}, {"steps": 3}, Columns((), {}))))
    return folder / file_name("server 0")


def _model(folder: Path) -> Path:
    """A saved model, as small as the zoo has one."""
    model = build_model("mlp", (4,), 2)
    said = SavedModel(model="mlp", definition=model.definition(), input_shape=(4,), outputs=2, data="digits", steps=1)
    path = folder / "model.safetensors"
    slots = {
        f"{layer.name}/{tensor.name}": TensorSlot(tensor.shape)
        for layer in model.layout.layers
        for tensor in layer.tensors
    }
    with path.open("wb") as file:
        file.write(header_of(slots, {METADATA_KEY: said.to_metadata()}))
        for slot in slots.values():
            write_values(file, np.zeros(slot.shape, dtype=np.float32))
    return path


_JOB: Final = b"""name = "demo"
[model]
name = "small_cnn"
[train]
steps = 10
batch = 32
[cluster]
servers = 1
workers = 2
"""
_MANIFEST: Final = json.dumps(
    {
        "format": 1,
        "job": "demo",
        "settings": {"train.batch": "32"},
        "step": 3,
        "total_steps": 10,
        "servers": 1,
        "workers": 1,
        "layers": [["fc", [["weight", [3, 4]]]]],
        "groups": [[0, 0]],
        "files": {"server 0": {"name": "server-0.safetensors", "size_bytes": 9, "sha256": "0" * 64}},
    }
).encode()
_TRACE_PART: Final = {
    "format": "taihu trace part 1",
    "sort_index": 0,
    "process": "worker 0",
    "dropped": 0,
    "clock_error_s": None,
    "events": [["compute", "forward", 1, 2, 1, None, None]],
}
_RECORDS: Final = (
    Begin("worker 0", 1, 0, 1, 2, 1),
    Read(1, 0, 0, 8, 7),
    Update(1, 0, 0, 8, None, 7, 8, 8),
    Skip(2),
    End(2),
)
_HISTORY: Final = b"".join(TypeAdapter(Record).dump_json(record) + b"\n" for record in _RECORDS)
_PROFILE: Final = Profile(
    layers=(LayerCost("fc", 100, 0.1), LayerCost("conv", 10, 0.2)),
    forward_seconds=0.1,
    scan=LinearCost(0.0, 1e-9),
    top_k=LinearCost(0.0, 1e-8),
    link=LinkCost(1e-4, 1e-9, 1e-9),
    workers=2,
    servers=1,
)


def _history(folder: Path) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        (folder / "worker-0.jsonl").write_bytes(data)
        return read_histories(folder)

    return call


def _all() -> tuple[Target, ...]:
    ours: tuple[Any, ...] = _PRINTABLE
    return (
        Target("job", _on_file("job.toml", load_job), ours, [_JOB]),
        Target("manifest", _manifest, ours, [_MANIFEST]),
        Target("part", _on_file("part.safetensors", _stored), ours, [_written(_part)]),
        Target("model", _on_file("model.safetensors", load_model), ours, [_written(_model)]),
        Target("run", _run, ours, [bytes((n,)) + _RUN[name] for n, name in enumerate(_RUN_FILES)]),
        Target("machines", _machines, ours, [EXAMPLE.encode("latin-1")]),
        Target("profile", _profile, ours, [json.dumps(_PROFILE.to_json()).encode()]),
        Target("history", _history, ours, [_HISTORY]),
        Target("trace_part", _on_file("part.json", _part_of_a_trace), ours, [json.dumps(_TRACE_PART).encode()]),
    )


TARGETS: Final = _all()
