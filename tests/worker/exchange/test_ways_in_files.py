"""The ways of values in CONTRIBUTING.md are what runs: none of their files is named in vain, and all are counted."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from support.cluster import layout_of
from support.listening import ROOT, calls_in_a_step
from support.ways import Way

from taihu.core.planner.sparse_route import SparseAlgorithm

LAYOUT = layout_of(32, 32)
# Here a test is in the place of the trainer.
NOT_HERE = "worker/training/trainer.py"
PLACE = re.compile(r"`((?:worker|allreduce|ps_server|core|taihu)/[\w/]+\.py)`")


def files_of(title: str) -> dict[int, set[str]]:
    """The files of a section of CONTRIBUTING.md by the numbers of its list; those of its text are number 0."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = re.split(r"\n\n(?=\*\*|Inside)", text[text.index(f"**{title}") :])[0].split("Beside the way")[0]
    steps = {
        int(number): set(PLACE.findall(step))
        for number, step in re.findall(r"^(\d+)\. (.*(?:\n   .*)*)", section, re.M)
    }
    rest = set(PLACE.findall(section)).difference(*steps.values())
    return {**steps, 0: rest}


def files_run(way: Way) -> set[str]:
    """The project's files of which a function is called, in any thread, in a step of two workers."""
    # A sign of life that comes while all are listened to would pass files of its own.
    patient = {"servers": 1, "workers": 2, "heartbeat_s": 300.0, "lost_after_s": 600.0}
    return set(calls_in_a_step(way.job(1, 2, cluster=patient), LAYOUT))


DENSE, SPARSE, RING = "A dense frame through servers", "A sparse frame through servers", "A segment around a ring"
KERNEL = "A kernel's sum around a ring"
MESH, FETCH = "Compressed groups between workers", "A fetch in ZeRO's stage 3"


def first(number: int, title: str) -> set[str]:
    return set().union(*(files for step, files in files_of(title).items() if 0 < step <= number))


def listed(title: str) -> set[str]:
    """All files that a section names in its list or, where it has none, in its text."""
    sections = files_of(title)
    return set().union(*(files for step, files in sections.items() if step)) or sections[0]


WAYS: dict[str, tuple[Way, Callable[[], set[str]], set[str]]] = {
    "dense grpc": (Way("server", 1, transport="grpc"), lambda: listed(DENSE), set()),
    "dense tcp": (Way("server", 1, transport="tcp"), lambda: listed(DENSE), set()),
    "sparse": (
        Way("server", 1, transport="grpc", method="dlgs", downlink="exact"),
        lambda: listed(DENSE) | listed(SPARSE),
        set(),
    ),
    "ring grpc": (
        Way("ring", 0, transport="grpc"),
        lambda: first(4, DENSE) | listed(RING),
        {"worker/exchange/ring/sharded.py"},
    ),
    "ring tcp": (
        Way("ring", 0, transport="tcp"),
        lambda: first(4, DENSE) | listed(RING) | listed(KERNEL),
        {"worker/exchange/ring/sharded.py", "core/wire/links/outbox.py"},
    ),
    "mesh": (
        Way("ring", 0, "fp32", "grpc", "dlgs", "exact", route=SparseAlgorithm.ALLGATHER),
        lambda: first(4, DENSE) | listed(RING) | listed(MESH),
        {
            "worker/exchange/ring/dense.py",
            "worker/exchange/ring/sharded.py",
            "allreduce/ring/schedule.py",
        },
    ),
    "stage 3": (Way("server", 3, transport="grpc"), lambda: listed(DENSE) | listed(FETCH), set()),
}


MOST: dict[str, int] = {
    "dense grpc": 21,
    "dense tcp": 22,
    "sparse": 30,
    "ring grpc": 19,
    "ring tcp": 20,
    "mesh": 30,
    "stage 3": 24,
}
"""The files of ours that run in a step of each way, all of them: these numbers may only fall."""


BESIDE = {
    "core/chaos/points.py",
    "core/history/recording.py",
    "core/job/job.py",
    "core/trace/recording.py",
    "core/wire/serving/metrics.py",
    "ps_server/instruments.py",
    "worker/exchange/base/recording.py",
}
"""Files of instruments, none of which a run has that asks for none, and of settings (docs/adr/0089)."""


@pytest.mark.parametrize("name", WAYS)
def test_a_way_passes_the_files_that_are_listed_and_no_more_than_before(name: str) -> None:
    way, files, of_other_ways = WAYS[name]
    expected = files() - of_other_ways - {NOT_HERE}
    seen = files_run(way)
    assert not expected - seen
    assert not seen & BESIDE
    for _ in range(3):
        if len(seen) > MOST[name]:
            # Whoever is the first in a process loads kernels. What belongs to the way is there each time.
            seen &= files_run(way)
    assert len(seen) <= MOST[name], sorted(seen - expected)


def test_a_sparse_frame_passes_one_file_that_a_dense_one_does_not() -> None:
    assert listed(SPARSE) - listed(DENSE) == {"worker/exchange/values.py"}
