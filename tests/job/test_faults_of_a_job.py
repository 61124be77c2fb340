"""The faults of a job for one of its members, and what is wrong with them in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from taihu.core.base.errors import ConfigError
from taihu.core.chaos.faults import FaultKind
from taihu.core.chaos.points import NoChaos, Point
from taihu.core.chaos.process import ProcessChaos
from taihu.core.job import Job, load_job
from taihu.core.job.chaos import chaos_of
from taihu.core.wire.base.clock import WallClock


def job(folder: Path | None, **chaos: object) -> Job:
    told = {} if folder is None else {"dir": str(folder)}
    return load_job(None, {"chaos": {**told, **chaos}})


def test_nothing_is_disturbed_unless_it_is_asked_for(tmp_path: Path) -> None:
    for quiet in (Job(), job(tmp_path, seed=3, kinds=["stop"], members=["worker 9"])):
        assert isinstance(chaos_of(quiet, "worker 0"), NoChaos)
    assert not any(tmp_path.iterdir())


def test_faults_that_are_asked_for_begin(tmp_path: Path) -> None:
    asked = job(tmp_path / "chaos", faults=["kill worker 1 at push"])
    assert isinstance(chaos_of(asked, "worker 0"), ProcessChaos)
    assert (tmp_path / "chaos" / "begun").exists()


def test_every_kind_can_be_drawn_but_a_delay() -> None:
    drawn = [kind.value for kind in FaultKind if kind is not FaultKind.DELAY]
    assert list(job(None, kinds=drawn).chaos.kinds) == drawn


def test_the_clock_of_a_member_jumps(tmp_path: Path) -> None:
    wall = WallClock()
    before = wall.now()
    chaos = chaos_of(job(tmp_path, faults=["clock-jump worker 0 at join"]), "worker 0", wall)
    chaos.passes(Point.JOIN)
    assert wall.now() - before >= 3600.0


@pytest.mark.parametrize(
    ("chaos", "words"),
    [
        (
            {"faults": ["kill worker 3 at push"]},
            "[chaos] worker 3: no member of this job; expected one of server 0, ",
        ),
        ({"every_s": 3.0, "members": ["server 2"]}, "[chaos] server 2: no member of this job"),
    ],
)
def test_a_member_that_the_job_has_not_is_named(chaos: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        chaos_of(job(tmp_path, **chaos), "worker 0")
    assert str(caught.value).startswith(words)


def test_faults_need_a_folder_that_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^chaos.dir: not set; name a folder"):
        chaos_of(job(None, every_s=3.0), "worker 0")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^chaos.dir .*file: cannot be written: "):
        chaos_of(job(tmp_path / "file", every_s=3.0), "worker 0")


@pytest.mark.parametrize(
    "chaos",
    [{"faults": ["hit worker 1 at push"]}, {"members": ["any"]}, {"kinds": ["kill", "kill"]}, {"kinds": []}],
)
def test_what_is_no_fault_is_refused_when_the_job_is_read(chaos: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        job(None, **chaos)
    assert "chaos." in str(caught.value)
    assert "\n" not in str(caught.value)
