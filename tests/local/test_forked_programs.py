"""Programs in forks: their streams pass through, and they end as a process of their own does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taihu.core.job.environment import without_settings
from taihu.local.processes.processes import DaemonFailedError, LocalProcesses

PROGRAM = """
import atexit
import os
import sys
import threading
import weakref


class Thing:
    pass


def say(text):
    # One write: two threads speak.
    sys.stdout.write(text + os.linesep)
    sys.stdout.flush()


def main():
    words = sys.argv[1:]
    atexit.register(say, "exit handler")
    threading._register_atexit(say, "before threads end")
    thing = Thing()
    weakref.finalize(thing, say, "finalizer")
    globals()["kept"] = thing
    thread = threading.Thread(target=say, args=("thread",))
    thread.start()
    say(" ".join(["hello", os.environ["WHO"], *words]))
    print("aside", file=sys.stderr)
    if words == ["fails"]:
        thread.join()  # a traceback is written piece by piece: a word of a thread may come between
        raise ValueError("no paper left")
    if words == ["leaves"]:
        sys.exit(3)


def run():
    main()


if __name__ == "__main__":
    main()
"""

STARTS = """
import os
import sys
from pathlib import Path

from taihu.local.processes.processes import LocalProcesses

with LocalProcesses(Path("logs"), fork=("program",)) as processes:
    print("forks", processes.forks, flush=True)
    for rank in range(2):
        environment = {**os.environ, "WHO": str(rank)}
        processes.run(f"worker {rank}", ["program", *sys.argv[1:]], environment, is_shown=not rank)
    processes.wait(600.0)
    processes.check()
print("after", flush=True)
"""


def started(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Two programs, the first of which is shown, in forks of a process."""
    (folder / "program.py").write_text(PROGRAM)
    (folder / "starts.py").write_text(STARTS)
    (folder / "logs").mkdir()
    return subprocess.run(
        [sys.executable, "starts.py", *words],
        cwd=folder,
        env={**without_settings(os.environ), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_fork_ends_as_the_program_does_by_itself(tmp_path: Path) -> None:
    done = started(tmp_path, "you")
    assert done.returncode == 0, done.stderr
    alone = subprocess.run(
        [sys.executable, "program.py", "you"],
        cwd=tmp_path,
        env={**os.environ, "WHO": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert {"hello 0 you", "exit handler", "before threads end", "finalizer"} <= set(alone.stdout.splitlines())
    first, *lines, last = done.stdout.splitlines()
    assert (first, last) == ("forks True", "after")
    assert sorted(lines) == sorted(alone.stdout.splitlines())
    assert done.stderr == alone.stderr == "aside\n"
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert sorted(log.splitlines()) == sorted([*alone.stdout.replace("hello 0", "hello 1").splitlines(), "aside"])


@pytest.mark.parametrize(("words", "told"), [("fails", "ValueError: no paper left"), ("leaves", "")])
def test_what_ends_a_program_is_told(words: str, told: str, tmp_path: Path) -> None:
    done = started(tmp_path, words)
    assert done.returncode == 1
    assert "DaemonFailedError" in done.stderr
    assert "after" not in done.stdout
    for text in (done.stdout + done.stderr, (tmp_path / "logs" / "worker-1.log").read_text()):
        assert {"exit handler", "before threads end", told or "aside"} <= set(text.splitlines())


def test_where_there_are_other_threads_programs_are_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr("taihu.local.processes.processes.prepare_to_fork", lambda _: False)
    environment = {**os.environ, "WHO": "0", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with LocalProcesses(tmp_path, fork=("program",)) as processes:
        assert not processes.forks
        processes.run("worker 0", ["program", "fails"], environment, is_shown=False)
        processes.wait(600.0)
        with pytest.raises(DaemonFailedError, match="worker 0"):
            processes.check()
    assert "ValueError: no paper left" in (tmp_path / "worker-0.log").read_text().splitlines()
