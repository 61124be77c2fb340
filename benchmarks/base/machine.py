"""The machine below all hosts of a benchmark: what it takes for messages and sums, and who else used it.

Measured by allreduces, sums and computations that are no row of any table, before all runs. CPU seconds are those of
all processes of a bench and what the kernel did for packets beside them; two lengths of the same bench tell a round
from the start of its processes.
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.exchange import allreduce, exchange
from taihu.allreduce.ring.schedule import buffer_layout, cut_chunks
from taihu.cli.planning.link_rate import parse_rate
from taihu.core.optimization.rules import OptimizerShard
from taihu.core.planner.groups import Group
from taihu.core.settings.optimizer import OptimizerSettings
from taihu.kernels.packing import pack, packed_bound, unpack
from taihu.kernels.reduce import sum_in_rank_order
from taihu.kernels.selection.scatter import make_marks, sum_sparse_in_rank_order
from taihu.simulation.sizes import PASSES_OF_UPDATE
from taihu.worker.engine.base.layer import StepContext
from taihu.worker.engine.models.loading import build_model
from taihu.worker.engine.models.model import StepHooks

__all__ = ["MACHINE", "PACED", "Processors", "awake", "calibrated", "compute_share", "machines_keys", "settings_of"]

MACHINE: Final = "the machine below all hosts"
PACED: Final = ("small", "medium", "large", "headed")
_PACED_FILE: Final = Path(__file__).parents[1] / "models" / "paced.py"
_CORES: Final = os.cpu_count() or 1
_VALUE_BYTES: Final = 4
# Allreduces of start-ups, over links that do not hold them up, and of bytes; with fewer rounds, and with more.
_RANKS, _FREE_RATE, _FEW_MB, _MANY_MB = 4, "40gbit", 0.1, 24.0
_FEW_ROUNDS: Final = (3, 28)
_CALLS_OF_FEW: Final = 200
# Rounds of allreduces, and of exchanges through a server, by the rate of their links. Who waits for a link is woken
# for a few packets at a time: what bytes cost depends on its rate. Slower links leave processors idle all the same.
_MANY_ROUNDS: Final = MappingProxyType({"1gbit": (4, 16), "10gbit": (4, 44)})
_EXCHANGE_ROUNDS: Final = MappingProxyType({"1gbit": (2, 5), "10gbit": (2, 9)})
# Both lengths of a bench are measured so many times.
_TIMES: Final = 5
# An exchange through a server, of a model's values in so many bytes, in frames.
_MODEL, _MODEL_BYTES, _FRAME_BYTES, _WORKERS = "resnet50", 102.2e6, 1 << 19, 2
_FRAME, _FRAMES, _CONTRIBUTIONS, _ATTEMPTS = 1 << 17, 16, 2, 20
# Of so many values one is selected.
_OF_EACH: Final = 32
_SPIN: Final = """
import os
os.setpriority(os.PRIO_PROCESS, 0, 19)
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True: pass
"""


def settings_of(model: str, batch: int, *, workers: int, calibration: int, steps: int) -> dict[str, object]:
    """The settings of a benchmark's job, by key; `model` is a function of `models/paced.py`, or of the zoo.

    So many `steps` come behind two calibrations of so many.
    """
    is_paced = model in PACED
    return {
        "model.name": f"{_PACED_FILE}:{model}" if is_paced else model,
        "data.name": f"synthetic:{'128x1x1' if is_paced else '3x32x32'}:samples=1024",
        "train.batch": batch,
        "train.steps": 2 * calibration + steps,
        "train.evaluate": "false",
        "optimizer.learning_rate": 0.001,
        "exchange.transport": "tcp",
        "exchange.calibration_steps": calibration,
        "cluster.workers": workers,
        "cluster.threads": 1,
    }


@contextmanager
def awake() -> Iterator[None]:
    """No processor halts meanwhile: each has a process that runs when nothing else does.

    A host of virtual machines may be late to wake a processor that has halted, by more than a message takes.
    """
    with ExitStack() as ending:
        for _ in range(_CORES):
            process = ending.enter_context(subprocess.Popen([sys.executable, "-c", _SPIN]))
            ending.callback(process.kill)
        yield


class Processors:
    """The work of the machine's processors since this object was made, beside that of our own processes."""

    def __init__(self) -> None:
        self._start = self._read()

    def disturbed(self) -> float:
        """The share of their time that others had: other processes here, and other guests of the machine's host."""
        others, whole, _ = self._since()
        return max(0.0, others / whole)

    def own_seconds(self) -> float:
        """Seconds of our processes that have ended, and of packets, whose ever they were."""
        return self._since()[2]

    def _since(self) -> tuple[float, ...]:
        return tuple(end - start for end, start in zip(self._read(), self._start, strict=True))

    @staticmethod
    def _read() -> tuple[float, float, float]:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        user, nice, system, idle, wait, hard, soft, stolen = (int(each) / os.sysconf("SC_CLK_TCK") for each in fields)
        own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        # Those that keep processors awake are nice.
        busy = user + system + stolen
        return busy - own, busy + nice + idle + wait + hard + soft, own + hard + soft


def calibrated() -> dict[str, Any]:
    """Times that a processor of the machine takes for messages, for their bytes and for sums, and that of a start-up.

    The work of allreduces of few bytes is that of their messages, and of many that of their bytes. Between two ranks,
    each of which has a processor then, what of their time is no work is the start-up.
    """
    processors = Processors()
    rows: list[dict[str, Any]] = []
    add_rate = _add_rate()
    few = _work(_RANKS, _FEW_MB, (_FREE_RATE, _FEW_ROUNDS), rows)
    many = {rate: _work(_RANKS, _MANY_MB, (rate, rounds), rows) for rate, rounds in _MANY_ROUNDS.items()}
    fastest = max(many, key=parse_rate)
    per_message = _per_message(few, many[fastest], add_rate)
    per_byte = {rate: _per_byte(work, per_message, add_rate) for rate, work in many.items()}
    _work(2, _FEW_MB, (_FREE_RATE, _FEW_ROUNDS), rows)
    hop = rows[-1]["seconds"]["median"] / 2
    through = {rate: _server_rate(rate, per_message, add_rate, rows) for rate in _EXCHANGE_ROUNDS}
    return {
        "alpha_seconds": max(0.0, hop - 2 * per_message - _FEW_MB * 1e6 / 2 * per_byte[fastest]),
        "shared_cores": _CORES,
        "core_bytes_per_second": {rate: 1.0 / seconds for rate, seconds in per_byte.items()},
        "server_bytes_per_second": through,
        "core_message_seconds": per_message,
        "add_bytes_per_second": add_rate,
        "selected_value_seconds": _selected_seconds(),
        "disturbed": processors.disturbed(),
        "of": rows,
    }


def machines_keys(machine: Mapping[str, Any], rate: str, *, servers: int) -> dict[str, Any]:
    """The part of a row of `calibrated` that is of hosts with links of a rate, by the keys of a file of machines.

    Bytes cost another time through servers, which keep those of all workers until the last one has come, than in a
    ring, where they are added as they come.
    """
    of_all = ("shared_cores", "core_message_seconds", "add_bytes_per_second", "selected_value_seconds")
    by_rate = machine["server_bytes_per_second" if servers else "core_bytes_per_second"]
    nearest = min(by_rate, key=lambda known: abs(math.log(parse_rate(known) / parse_rate(rate))))
    return {**{key: machine[key] for key in of_all}, "core_bytes_per_second": by_rate[nearest]}


def _per_message(few: float, many: float, add_rate: float) -> float:
    """Seconds of one end of a message, from the work of allreduces of few bytes and of many."""
    (messages, sizes), (more, larger) = _ends(_RANKS, _FEW_MB), _ends_of_many()
    few, many = (work - size / 4 / add_rate for work, size in ((few, sizes), (many, larger)))
    # few = messages x + sizes y, and many = more x + larger y.
    return max(0.0, (few * larger - many * sizes) / (messages * larger - more * sizes))


def _per_byte(many: float, per_message: float, add_rate: float) -> float:
    """Seconds of one end of a byte, from the work of an allreduce of many bytes."""
    more, larger = _ends_of_many()
    return (many - larger / 4 / add_rate - more * per_message) / larger


def _ends_of_many() -> tuple[int, float]:
    """The ends of messages, and of bytes, of a round of many bytes, before which all ranks meet by few."""
    (messages, _), (more, larger) = _ends(_RANKS, _FEW_MB), _ends(_RANKS, _MANY_MB)
    return messages + more, larger


def _work(ranks: int, megabytes: float, over: tuple[str, tuple[int, int]], rows: list[dict[str, Any]]) -> float:
    """CPU seconds of one allreduce of all ranks together, `over` a rate in so many rounds; adds its row to `rows`."""
    calls = _CALLS_OF_FEW if megabytes == _FEW_MB else 1
    rate, rounds = over

    def measure(number: int) -> dict[str, Any]:
        return allreduce.measure(rate, ranks, f"{megabytes}", number, [])[0]

    return _of_round(measure, rounds, rows, calls)


def _of_round(
    measure: Callable[[int], dict[str, Any]],
    rounds: tuple[int, int],
    rows: list[dict[str, Any]],
    calls: int = 1,
) -> float:
    """CPU seconds of one of a round's calls: the median of differences between fewer and more rounds.

    Adds the row of the last run to `rows`.
    """
    measure(rounds[0])  # a fresh clone compiles kernels in its first run
    spent = np.zeros((_TIMES, len(rounds)))
    for each in spent:
        for place, number in enumerate(rounds):
            processors = Processors()
            row = measure(number)
            each[place] = processors.own_seconds()
    seconds = float(np.median(np.diff(spent))) / (rounds[1] - rounds[0]) / calls
    rows.append({**row, "cpu_seconds": seconds})
    return seconds


def _server_rate(rate: str, per_message: float, add_rate: float, rows: list[dict[str, Any]]) -> float:
    """Bytes that one processor sends, or takes in, in a second where they pass through a server over such links."""

    def measure(number: int) -> dict[str, Any]:
        return exchange.measure(_MODEL, (1, _WORKERS), rate, number, [])

    seconds = _of_round(measure, _EXCHANGE_ROUNDS[rate], rows)
    ends = 2 * 2 * _WORKERS
    seconds -= ends * _MODEL_BYTES / _FRAME_BYTES * per_message
    seconds -= (_WORKERS + PASSES_OF_UPDATE) * _MODEL_BYTES / add_rate
    return ends * _MODEL_BYTES / seconds


def _ends(ranks: int, megabytes: float) -> tuple[int, float]:
    """The ends of all messages of an allreduce, and bytes at them all."""
    layout, group = buffer_layout(round(megabytes * 1e6 / _VALUE_BYTES)), Group(0, 0)
    chunks = cut_chunks(layout, group, ranks, _VALUE_BYTES)
    segments = sum(len(chunk) for chunk in chunks)
    return 2 * 2 * (ranks - 1) * segments, 2 * 2 * (ranks - 1) * megabytes * 1e6


def _add_rate() -> float:
    """Bytes that one processor adds up, or passes over in an update, in a second."""
    contributions = np.ones((_CONTRIBUTIONS, _FRAMES, _FRAME), dtype=np.float32)
    total, parameters = np.empty(_FRAME, dtype=np.float32), np.ones(_FRAMES * _FRAME, dtype=np.float32)
    optimizer = OptimizerShard(OptimizerSettings(), parameters)
    optimizer.warm_up()

    def step() -> None:
        for frame in range(_FRAMES):
            sum_in_rank_order([each[frame] for each in contributions], total)
            optimizer.update(frame * _FRAME, (frame + 1) * _FRAME, total, 1, scale=0.5)

    seconds = min(_timed(step, time.thread_time) for _ in range(_ATTEMPTS))
    return (_CONTRIBUTIONS + PASSES_OF_UPDATE) * parameters.nbytes / seconds


def _selected_seconds() -> float:
    """Seconds of one processor to unpack, add up or pack a value of those that were selected, in the mean."""
    generator = np.random.default_rng(0)
    chosen = generator.permuted(np.tile(np.arange(_FRAME) % _OF_EACH == 0, (_CONTRIBUTIONS, 1)), axis=1)
    selected = [np.flatnonzero(each).astype(np.int32) for each in chosen]
    values = np.ones(len(selected[0]), dtype=np.float32)
    bounds = np.array([[0, _FRAME]])
    total, marks, sums = np.zeros(_FRAME, dtype=np.float32), make_marks(_FRAME), np.empty(_FRAME, dtype=np.float32)
    indices, packed = np.empty(_FRAME, dtype=np.int32), np.empty(len(values), dtype=np.float32)
    sections = np.empty(packed_bound(_FRAME, 1), dtype=np.uint8)
    pairs = [(each, values) for each in selected]

    def step() -> None:
        for each, own in pairs:
            count, size = pack(each, own, bounds, packed, sections)
            unpack(sections[:size], bounds, count, indices[:count])
        sum_sparse_in_rank_order(pairs, 0, total, marks, indices, sums)

    step()
    seconds = min(_timed(step, time.thread_time) for _ in range(_ATTEMPTS))
    return seconds / 3 / _CONTRIBUTIONS / len(values)


def compute_share(model: str, batch: int, steps: int = 6) -> float:
    """The share of the time of forward and backward, alone on the machine, in which a processor works."""
    settings = settings_of(model, batch, workers=1, calibration=0, steps=steps)
    shape, classes = ((1, 1, 128) if model in PACED else (32, 32, 3)), 10
    built = build_model(str(settings["model.name"]), shape, classes)
    parameters, gradients = (np.zeros(built.layout.elements, np.float32) for _ in range(2))
    built.bind(parameters, gradients)
    built.initialize(0)
    generator = np.random.default_rng(0)
    images = generator.standard_normal((batch, *shape), dtype=np.float32)
    labels = generator.integers(0, classes, batch)

    def step() -> None:
        context = StepContext(training=True, seed=0, step=1, first_sample=0)
        built.train(images, labels, context, StepHooks())

    with threadpool_limits(1, "blas"):
        step()
        clocks = time.process_time, time.perf_counter
        works, passes = (min(_timed(step, clock) for _ in range(steps)) for clock in clocks)
    return min(1.0, works / passes)


def _timed(step: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    step()
    return clock() - start
