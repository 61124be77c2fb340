"""The world of a run: the first one is the job's, and each plan has one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.cluster import layout_of, make_job

from taihu.core.base.errors import ConfigError
from taihu.core.coordination.plans.planning import first_plan
from taihu.core.job import load_job
from taihu.core.model.world import World

ROOT = Path(__file__).parents[1]


def test_a_world_names_its_processes_and_owners() -> None:
    world = World(2, 3)
    assert world.names == ("server 0", "server 1", "worker 0", "worker 1", "worker 2")
    assert (world.size, world.owners) == (5, 2)
    ring = load_job(None, {"exchange": {"kind": "ring"}, "cluster": {"servers": 4, "workers": 3}}).world
    assert (ring, ring.owners, ring.names) == (World(0, 3), 3, ("worker 0", "worker 1", "worker 2"))


@pytest.mark.parametrize("sizes", [(0, 0), (-1, 2)])
def test_a_world_of_nobody_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"expected a worker"):
        World(*sizes)


def test_the_first_plan_has_the_jobs_world() -> None:
    assert first_plan(make_job(2, 3), layout_of(4, 4), one_host=False).world == World(2, 3)


def test_the_number_of_workers_in_the_settings_is_read_by_the_first_world_alone() -> None:
    folders = ("core", "taihu", "worker", "allreduce", "ps_server")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    readers = {path.relative_to(ROOT).as_posix() for path in files if reads_workers(path.read_text())}
    assert readers == {"core/job/job.py"}


def reads_workers(source: str) -> bool:
    """Whether a source reads the attribute `workers` of something that is called `cluster`."""
    if "cluster.workers" not in source:
        return False
    found = (
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr == "workers"
    )
    return any("cluster" in {getattr(of, "attr", None), getattr(of, "id", None)} for of in found)


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("job.cluster.workers", True),
        ("n = cluster.workers + 1", True),
        ("f'cluster.workers={job.world.workers}'", False),
    ],
)
def test_a_reader_is_told_from_a_text(source: str, reads: bool) -> None:
    assert reads_workers(source) == reads
