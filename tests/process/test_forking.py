"""A command in a fork of a process is the one that a process of its own would have been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Its `run` does what its first argument says.
PROBE = """
import atexit, concurrent.futures, json, os, signal, sys, threading, time
def told():
    return {
        "arguments": sys.argv[1:], "main": sys.modules["__main__"].__package__, "folder": os.getcwd(),
        "environment": dict(os.environ), "input": sys.stdin.read(), "leads": os.getsid(0) == os.getpid(),
        "files": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
        "terminates": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "command_line": open("/proc/self/cmdline", encoding="utf-8").read().replace(chr(0), " ").strip(),
    }
def run():
    how = sys.argv[1]
    if how == "tell":
        print(json.dumps(told()))
        print("aside", file=sys.stderr)
    elif how == "words":
        sys.exit("some words")
    elif how == "code":
        sys.exit(7)
    elif how == "error":
        raise ValueError("a mistake")
    elif how == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    elif how == "threads":
        threading.Thread(target=lambda: (time.sleep(0.2), print("at last"))).start()
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    elif how == "pool":
        global pool  # which nobody shuts down
        pool = concurrent.futures.ThreadPoolExecutor(1)
        print(pool.submit(os.path.basename, "a/word").result())
        atexit.register(print, "exit handler")
    elif how == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
"""
# Forks the probe for each of its arguments, and prints what became of it.
PARENT = """
import json, os, signal, sys, tempfile, time
from pathlib import Path
from taihu.core.process.forking import ForkedProcess, Streams, can_fork, fork_command
open_all_the_time = open(sys.argv[0])
folder = tempfile.TemporaryDirectory()
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGINT, signal.SIG_IGN)
outcomes = {}
for how in sys.argv[2:]:
    with open("err", "wb") as err:
        process = ForkedProcess.start("probe", [how, "an argument"], err.fileno(), {"ONLY": "this"})
    if how == "tell":
        process.stdin.write(b"from the parent")
    process.stdin.close()
    output = process.stdout.read().decode()
    process.stdout.close()
    outcomes[how] = [process.wait(timeout=600), output, open("err").read()]
with open("out", "w+") as out, open("empty", "w+") as empty:
    streams = Streams(empty.fileno(), out.fileno(), out.fileno())
    pid = fork_command("probe", ["words"], streams, environment={}, folder=Path(sys.argv[1]))
    outcomes["elsewhere"] = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), open("out").read(), ""]
assert os.path.isdir(folder.name)
assert can_fork([open_all_the_time.fileno()]) and not can_fork()
print(json.dumps(outcomes))
"""
HOWS = ("tell", "words", "code", "error", "signal", "threads", "pool", "interrupted")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Exit code, stdout and stderr of each fork."""
    folder = tmp_path_factory.mktemp("forks")
    package = folder / "site" / "probe"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(PROBE)
    (folder / "parent.py").write_text(f"import sys\nsys.path.append({str(folder / 'site')!r})\n{PARENT}")
    command = [sys.executable, "-P", str(folder / "parent.py"), str(folder / "site"), *HOWS]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return {how: tuple(outcome) for how, outcome in json.loads(done.stdout).items()}


def test_a_fork_is_given_arguments_environment_files_and_signals_of_its_own(
    outcomes: dict[str, tuple[int, str, str]],
) -> None:
    code, output, errors = outcomes["tell"]
    assert (code, errors) == (0, "aside\n")
    told = json.loads(output)
    assert told["arguments"] == ["tell", "an argument"]
    assert told["main"] == "probe"
    assert told["environment"] == {"ONLY": "this"}
    assert told["input"] == "from the parent"
    assert told["leads"]
    assert told["files"] == [0, 1, 2]
    assert told["terminates"]
    assert told["interrupts"]
    assert told["blocked"] == []
    assert told["command_line"].startswith("python -P -m probe tell an argument")


@pytest.mark.parametrize(
    ("how", "code", "errors"),
    [("words", 1, "some words\n"), ("code", 7, ""), ("signal", -15, ""), ("elsewhere", 1, "")],
)
def test_it_ends_as_it_says(outcomes: dict[str, tuple[int, str, str]], how: str, code: int, errors: str) -> None:
    assert (outcomes[how][0], outcomes[how][2]) == (code, errors)


def test_a_mistake_in_it_is_told_and_nothing_of_the_process_before_goes_on(
    outcomes: dict[str, tuple[int, str, str]],
) -> None:
    code, output, errors = outcomes["error"]
    assert (code, output) == (1, "")
    assert errors.endswith("ValueError: a mistake\n")


def test_its_threads_are_waited_for_unless_they_are_daemons(outcomes: dict[str, tuple[int, str, str]]) -> None:
    assert outcomes["threads"] == (0, "at last\n", "")


def test_it_ends_as_the_interpreter_does(outcomes: dict[str, tuple[int, str, str]]) -> None:
    """The hooks by which a library ends its threads come before these are waited for, and exit handlers behind."""
    assert outcomes["pool"] == (0, "word\nexit handler\n", "")
    code, output, errors = outcomes["interrupted"]
    assert (code, output) == (-signal.SIGINT, "")
    assert errors.endswith("KeyboardInterrupt\n")


def test_words_that_the_locale_cannot_read_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(f"import json{PROBE}")
    asks = f"""
import sys
sys.path.append({str(tmp_path)!r})
from taihu.core.process.forking import ForkedProcess
with open("err", "wb") as err:
    process = ForkedProcess.start("probe", ["tell", *sys.argv[1:]], err.fileno(), {{}})
process.stdin.close()
sys.stdout.buffer.write(process.stdout.read())
sys.exit(process.wait(120))
"""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", asks, "öl/tïny.py"],
        cwd=tmp_path,
        env={**os.environ, **locale},
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, (done.stderr, (tmp_path / "err").read_text())
    told = json.loads(done.stdout)
    assert os.fsencode("öl/tïny.py") == told["arguments"][1].encode("ascii", "surrogateescape")
    assert told["command_line"].endswith(" tell öl/tïny.py")
