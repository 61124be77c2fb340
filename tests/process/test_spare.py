"""A process that stands by forks commands, which are children of whoever asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
def run():
    # Who is in between has ended when whoever asked has an answer, and writes.
    begun = os.read(0, 1)
    print(os.getppid(), *sys.argv[1:], os.environ["MINE"], flush=True)
    sys.stderr.write("said\\n")
    print(len(begun + sys.stdin.buffer.read()), flush=True)
    raise SystemExit(7)
"""
ASKING = """
import json, os, select
from taihu.core.process.spare import SpareProcess
seen = {"pid": os.getpid()}
with open("log", "wb") as log:
    read, write = os.pipe()
    spare = SpareProcess.stand_by()
    # What was open before is not kept open.
    os.close(write)
    seen["ends"] = bool(select.select([read], [], [], 5)[0])
    first, second = (spare.start("spare_program", [name], log.fileno(), {"MINE": "yes"}) for name in ("one", "two"))
    first.stdin.write(b"12345")
    first.stdin.close()
    seen["first"] = first.stdout.readline().decode().split()
    seen["read"], seen["first ended with"] = int(first.stdout.readline()), first.wait(120)
    second.stdin.write(b"1")
    second.stdin.flush()
    second.stdout.readline()
    second.kill()
    seen["second ended with"] = second.wait(120)
    spare.close()
    try:
        spare.start("spare_program", [], log.fileno(), {})
    except OSError:
        seen["closed"] = True
print(json.dumps(seen))
"""


def test_commands_are_children_of_who_asked(tmp_path: Path) -> None:
    package = tmp_path / "spare_program"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    asked = subprocess.run(
        [sys.executable, "-c", ASKING],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    seen = json.loads(asked.stdout)
    assert seen == {
        "pid": seen["pid"],
        "first": [str(seen["pid"]), "one", "yes"],
        "ends": True,
        "read": 5,
        "first ended with": 7,
        "second ended with": -9,
        "closed": True,
    }
    assert (tmp_path / "log").read_text().startswith("said\n")
