"""Values change over from gRPC to connections of their own and back between steps; no bit depends on it."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.cluster import layout_of, make_job
from support.exchanges import run_workers, settle
from support.worker import Values, Worker

from taihu.allreduce.communicator import Communicator
from taihu.allreduce.order.operation import Operation, OperationKey
from taihu.core.job import Job
from taihu.core.planner.carriage import Carriage, carrier_in
from taihu.core.wire.links.direct_connection import open_connection

LAYOUT = layout_of(3000, 40_000, 7, 20_000)
STEPS = 6

KINDS: dict[str, dict[str, object]] = {
    "servers": {"transport": "grpc", "plan": "per-layer"},
    "servers, fetched": {"transport": "grpc", "plan": "per-layer", "zero": 3},
    "ring": {"transport": "grpc", "plan": "per-layer", "kind": "ring"},
    "ring, fetched": {"transport": "grpc", "plan": "per-layer", "kind": "ring", "zero": 3},
}


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def ends_of(job: Job, carriages: tuple[Carriage, Carriage]) -> tuple[set[bytes], set[str]]:
    """The parameters of all workers after steps by one carriage and then by another, and the paths taken."""

    def work(worker: Worker) -> tuple[bytes, tuple[str, ...]]:
        exchange, paths = worker.exchange, []
        values = worker.read()
        for step in range(1, STEPS + 1):
            carriage = carriages[step > STEPS // 2]
            if exchange.plan.carriage != carriage:
                worker.complete()
                exchange.adopt(replace(exchange.plan, carriage=carriage))
            settle(exchange)
            values = worker.step(step, gradients(worker.rank, step))
            paths.append(exchange.path)
            assert exchange.path == carrier_in(carriage, step)
        return values.tobytes(), tuple(paths)

    results = run_workers(job, LAYOUT, work)
    return {values for values, _ in results}, {path for _, paths in results for path in paths}


def job_of(kind: str) -> Job:
    return make_job(2, 3, exchange=KINDS[kind], optimizer={"learning_rate": 0.1, "momentum": 0.9})


@cache
def plain_ends(kind: str) -> set[bytes]:
    """The end of a run that gRPC carries alone."""
    plain, paths = ends_of(job_of(kind), ("grpc", "grpc"))
    assert (len(plain), paths) == (1, {"grpc"})
    return plain


# Runs of a kind are compared with one that is made once, in one process.
kinds = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.xdist_group(f"carriage of {kind}")) for kind in KINDS]
)


@kinds
def test_a_trial_and_its_outcome_change_no_bit(kind: str) -> None:
    job, plain = job_of(kind), plain_ends(kind)
    assert ends_of(job, ("trial", "tcp")) == (plain, {"grpc", "tcp"})
    assert ends_of(job, ("trial", "grpc")) == (plain, {"grpc", "tcp"})


def test_no_two_operations_of_a_rank_have_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour may still take what was gathered before a change, when that is gathered again behind it."""
    keys: dict[int, list[OperationKey]] = {}

    def start(communicator: Communicator, operation: Operation) -> None:
        keys.setdefault(communicator.rank, []).append(operation.key)
        unpatched(communicator, operation)

    unpatched = Communicator.start
    monkeypatch.setattr(Communicator, "start", start)
    ends_of(job_of("ring, fetched"), ("trial", "tcp"))
    assert sorted(keys) == [0, 1, 2]
    assert all(len(set(of_rank)) == len(of_rank) for of_rank in keys.values())


@kinds
def test_a_trial_goes_on_by_grpc_until_there_is_a_connection(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # So long as a firewall drops what asks for a connection.
    passable = threading.Event()

    def open_late(*arguments: object, **others: object) -> object:
        assert passable.wait(60)
        return open_connection(*arguments, **others)  # type: ignore[arg-type]

    monkeypatch.setattr("taihu.core.wire.links.frame_link.open_connection", open_late)

    def work(worker: Worker) -> tuple[bytes, list[str]]:
        exchange, paths = worker.exchange, []
        exchange.adopt(replace(exchange.plan, carriage="trial"))
        worker.read()
        for step in range(1, STEPS + 1):
            if step == STEPS // 2 + 1:
                passable.set()
                settle(exchange)
            values = worker.step(step, gradients(worker.rank, step))
            paths.append(exchange.path)
        return values.tobytes(), paths

    results = run_workers(job_of(kind), LAYOUT, work)
    assert {values for values, _ in results} == plain_ends(kind)
    assert [paths for _, paths in results] == [["grpc", "grpc", "grpc", "tcp", "grpc", "tcp"]] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_ends_while_a_connection_is_still_tried(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    over, tried = threading.Event(), []

    def never_open(*arguments: object, **others: object) -> None:
        tried.append(threading.current_thread())
        assert over.wait(60)

    monkeypatch.setattr("taihu.core.wire.links.frame_link.open_connection", never_open)
    job = make_job(2, 3, exchange=KINDS[kind])

    def work(worker: Worker) -> str:
        worker.exchange.adopt(replace(worker.exchange.plan, carriage="trial"))
        worker.read()
        worker.step(1, gradients(worker.rank, 1))
        worker.step(2, gradients(worker.rank, 2))
        return worker.exchange.path

    assert run_workers(job, LAYOUT, work) == ["grpc"] * 3
    assert tried
    assert all(thread.is_alive() for thread in tried)
    over.set()
    for thread in tried:
        thread.join()
