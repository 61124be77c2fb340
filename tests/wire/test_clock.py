"""The time of day, which may jump: where it is read, and what is written by it."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path

import pytest
import structlog

from taihu.core.wire.base.clock import WallClock
from taihu.core.wire.base.log import configure_logs

ROOT = Path(__file__).parents[2]
PACKAGES = ("kernels", "core", "taihu", "allreduce", "ps_server", "worker")
READ_BY = {"wall_s", "utc_now", "local_now"}
# What `taihu train` and `taihu dev chaos` write on their own, and the name of a run's folder.
# Certificates are good by the time of all machines, by which TLS looks at them; a logger's run has a date for people.
OF_NO_MEMBER = (
    *("taihu/local/", "taihu/cli/", "core/job/run_folder.py", "core/security/certificates.py"),
    "worker/reporting/loggers/to_trackio.py",
)


def reads_wall_time(path: Path) -> bool:
    """Whether it has the time of day from the source, which alone has it from Python."""
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    return any(each.module == "taihu.core.system.clocks" and READ_BY & {n.name for n in each.names} for each in nodes)


def test_members_read_the_time_of_day_in_one_place() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 300
    reading = {str(path.relative_to(ROOT)) for path in files if reads_wall_time(path)}
    assert {path for path in reading if not path.startswith(OF_NO_MEMBER)} == {"core/wire/base/clock.py"}


def test_a_clock_that_has_jumped_goes_on() -> None:
    wall = WallClock()
    assert abs(wall.now() - time.time()) < 60.0
    wall.jump(3600.0)
    wall.jump(1800.0)
    assert 5340.0 < wall.now() - time.time() < 5460.0
    assert abs(wall.utc().timestamp() - wall.now()) < 60.0


def test_lines_of_a_log_have_the_time_of_its_clock(capsys: pytest.CaptureFixture[str]) -> None:
    wall = WallClock()
    wall.jump(-wall.now() + 86400.0)
    try:
        configure_logs("json", wall=wall)
        structlog.get_logger().info("hello")
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "hello"
    assert line["timestamp"].startswith("1970-01-02T00:00:")
    assert line["timestamp"].endswith("Z")
