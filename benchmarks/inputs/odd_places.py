"""Commands where a machine is not as it should be: `python -m benchmarks odd_places [NAME...]`.

Full disks, limits, streams that are closed or that nobody reads, folders that are gone, odd variables: each command
runs, or ends with one line that says why; never with a traceback, and never without a word. Places with a disk of
their own need root, for `unshare` and a mount that is gone afterwards. --list names all places.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["PLACES", "Place", "problem_of", "run_place"]

_TRAIN: Final = "taihu train --model mlp --data digits --servers 1 --workers 2 --steps 10 --quiet"
_RING: Final = _TRAIN.replace("--servers 1", "--exchange ring")
_LONGEST_S: Final = 120.0
_OUT: Final = "cannot write standard output: "
_FULL: Final = "No space left on device"


@dataclass(frozen=True)
class Place:
    """A command in a place, and what is right there.

    Attributes:
        name: of the place.
        command: for bash, in an empty folder; with `model.safetensors` and a run, `run`, in $MADE.
        code: the exit code.
        says: words of standard error; "" for whatever is said.
    """

    name: str
    command: str
    code: int = 0
    says: str = ""

    @property
    def needs_root(self) -> bool:
        """Whether it mounts something."""
        return "unshare" in self.command


def _on_disk(body: str, *, size: str = "8k", full: bool = True) -> str:
    """The command with a disk `k` of its own, which is full already or becomes so."""
    fill = f"head -c {size.upper()} /dev/zero > k/full 2> /dev/null; " if full else ""
    return f"unshare -m bash -c 'mkdir k; mount -t tmpfs -o size={size} tmpfs k; {fill}{body}'"


def _on_shared_memory(body: str, options: str) -> str:
    return f"unshare -m bash -c 'mount -t tmpfs -o {options} tmpfs /dev/shm; {body}'"


def _disks() -> Iterator[Place]:
    yield Place("a run folder", _on_disk(f"{_TRAIN} --run-dir k/r"), 1, f"cannot write k/r/settings.toml: {_FULL}")
    small = _on_disk(f"{_TRAIN} --run-dir k/r --set run.history=history", size="40k", full=False)
    yield Place("a run folder that becomes full", small, 0, f"model.safetensors: {_FULL}; the model is ")
    ring = _on_disk(f"{_RING} --run-dir k/r", size="40k", full=False)
    yield Place("a run folder that becomes full, in a ring", ring, 0, f"model.safetensors: {_FULL}; the model is ")
    events = _on_disk(f"{_TRAIN} --run-dir k/r --set run.loggers=tensorboard", size="36k", full=False)
    yield Place("TensorBoard's events", events, 0, "events: ")
    yield Place("a model", _on_disk(f"{_TRAIN} --run-dir none --save k/m.safetensors"), 0, "; the model is ")
    yield Place("results", _on_disk(f"{_TRAIN} --run-dir none --json k/r.json"), 1, f"r.json: {_FULL}")
    yield Place("a trace", _on_disk(f"{_TRAIN} --run-dir none --trace k/t.json"), 0, f"k/t.json: {_FULL}")
    yield Place("logs", _on_disk(f"{_TRAIN} --run-dir none --logs k/logs"))
    kept = "--set checkpoint.dir=k/c --set checkpoint.every_steps=3"
    yield Place("checkpoints", _on_disk(f"{_TRAIN} --run-dir none {kept}"))
    yield Place("TMPDIR", _on_disk(f"TMPDIR=$PWD/k {_TRAIN} --run-dir none"))
    yield Place("shared memory", _on_shared_memory(f"{_TRAIN} --run-dir none", "size=4k"))
    yield Place("shared memory of a ring", _on_shared_memory(f"{_RING} --run-dir none", "size=4k"))
    yield Place("shared memory that is read only", _on_shared_memory(f"{_TRAIN} --run-dir none", "size=4k,ro"))
    read_only = f"unshare -m bash -c 'mkdir k; mount -t tmpfs -o ro tmpfs k; {_TRAIN} --run-dir k/r'"
    yield Place("a disk that is read only", read_only, 2, "Read-only file system")
    for blocks in (0, 1):
        yield Place(f"files of {blocks} KiB", f"ulimit -f {blocks}; {_TRAIN}", 1, "settings.toml: File too large")
    yield Place("files of 8 KiB", f"ulimit -f 8; {_TRAIN}", 1, "the model was not saved: cannot write ")
    yield Place("no cache of kernels", f"NUMBA_CACHE_DIR=/proc/nowhere {_TRAIN} --run-dir none")


def _commands() -> Iterator[Place]:
    model = "$MADE/model.safetensors"
    for name, command in {
        "evaluate": f"taihu evaluate {model} --json k/f",
        "export to onnx": f"taihu export {model} --to onnx --out k/f",
        "export to torch": f"taihu export {model} --to torch --out k/f",
        "report": "taihu report $MADE/run --out k/f",
        "plan": "taihu plan step $MADE/run/results.json --json k/f",
        "simulate": "taihu simulate run --network ethernet:1gbit --json k/f",
        "a simulated trace": "taihu simulate run --network ethernet:1gbit --trace k/f",
        "checkpoint export": "taihu checkpoint export $MADE/run k/f",
        "checkpoint reshard": "taihu checkpoint reshard $MADE/run k/f --servers 2 --workers 2",
        "certs": "taihu certs --out k/f",
        "bench sw26010": "taihu dev bench sw26010 --json k/f",
    }.items():
        yield Place(f"a disk for {name}", _on_disk(command), 1, f": {_FULL}")
    for name, command in {
        "job": "taihu job",
        "help": "taihu train --help",
        "version": "taihu --version",
        "evaluate": f"taihu evaluate {model}",
        "checkpoint ls": "taihu checkpoint ls $MADE/run",
    }.items():
        yield Place(f"{name} to a full disk", f"{command} > /dev/full", 1, f"{_OUT}{_FULL}")
        yield Place(f"{name} to nowhere", f"{command} >&-", 1, f"{_OUT}it is closed")
    yield Place("a reader that has gone", "taihu train --help | true; exit ${PIPESTATUS[0]}", 141)


def _streams() -> Iterator[Place]:
    loud = f"{_TRAIN.replace(' --quiet', '')} --run-dir none"
    yield Place("a run to a full disk", f"{loud} > /dev/full", 0, f"{_OUT}{_FULL}; the run goes on without it")
    yield Place("a run without output", f"{loud} >&-")
    yield Place("a run without errors", f"{loud} 2>&-")
    yield Place("a run without input", f"{loud} <&-")
    yield Place("a run without streams", f"{loud} <&- >&- 2>&-")
    gone = f"{loud} | head -1; exit ${{PIPESTATUS[0]}}"
    yield Place("a run whose reader has gone", gone, 0, f"{_OUT}its reader has gone; the run goes on without it")
    yield Place("results to a full disk", f"{loud} --json - > /dev/full", 1, f"{_OUT}{_FULL}")


def _variables() -> Iterator[Place]:
    for name, variables in {
        "no HOME": "-u HOME",
        "a HOME that is none": "HOME=/proc/nowhere",
        "a TMPDIR that is none": "TMPDIR=/nowhere",
        "optimised Python": "PYTHONOPTIMIZE=2",
        "warnings as errors": "PYTHONWARNINGS=error",
        "a proxy": "http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 grpc_proxy=http://127.0.0.1:9",
        "threads of OpenMP": "OMP_NUM_THREADS=0 OPENBLAS_NUM_THREADS=x",
        "a runtime folder that is none": "XDG_RUNTIME_DIR=/nowhere",
        "ASCII": "PYTHONIOENCODING=ascii",
        "no columns": "COLUMNS=0",
        "an odd terminal": "TERM=nothing",
        "a time zone that is none": "TZ=Nowhere/None",
    }.items():
        yield Place(name, f"env {variables} {_TRAIN} --run-dir none")
    yield Place("NUMBA_DISABLE_JIT", f"NUMBA_DISABLE_JIT=1 {_TRAIN}", 1, "NUMBA_DISABLE_JIT is set")
    yield Place("NUMBA_NUM_THREADS", f"NUMBA_NUM_THREADS=0 {_TRAIN}", 1, "NUMBA_NUM_THREADS: expected")
    yield Place("WORLD_SIZE alone", "WORLD_SIZE=3 taihu node", 2, "variable RANK is missing")
    yield Place("RANK alone", "RANK=0 taihu node", 2, "variable WORLD_SIZE is missing")
    yield Place("a rank too many", "RANK=3 WORLD_SIZE=3 taihu node", 2, "ranks go from 0 to 2")
    unknown = "taihu worker --rank 0 --coordinator nohost.invalid:7070 --set cluster.connect_timeout_s=2"
    yield Place("a name that nobody knows", unknown, 2, "the name nohost.invalid is not known here")
    yield Place("a folder that is gone", f"mkdir g; cd g; rmdir ../g; {_TRAIN}", 1, "the current folder: ")
    yield Place("64 open files", f"ulimit -n 64; {_TRAIN} --run-dir none")
    yield Place("1 GB of addresses", f"ulimit -v 1000000; {_TRAIN} --run-dir none")
    odd = r"a\ b\'%s\"ö"
    yield Place("an odd folder", f"mkdir {odd}; cd {odd}; {_TRAIN} --run-dir ./-r")


PLACES: Final = (*_disks(), *_commands(), *_streams(), *_variables())


def problem_of(place: Place, code: int | None, out: str, err: str) -> str:
    """The mistake in the end of a command, "" for none; where its `code` is None it has not ended."""
    if code is None:
        return "it does not end"
    if "Traceback (most recent call last)" in out + err:
        return "a traceback"
    if code != place.code:
        return f"exit code {code}, expected {place.code}"
    if place.says not in err:
        return f"expected {place.says!r}"
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    return f"{len(errors)} lines of errors" if len(errors) > 1 else ""


def run_place(place: Place, made: Path) -> tuple[int | None, str, str]:
    """The exit code, standard output and error of its command; without a code where it does not end."""
    environment = {**os.environ, "MADE": str(made), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory(prefix="odd-") as folder:
        process = subprocess.Popen(
            ["bash", "-c", place.command],  # noqa: S607
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, *process.communicate()
    return process.returncode, out, err


def main() -> None:
    """Run commands in all places, or in those whose names have the words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="words in the names of places; by default all")
    parser.add_argument("--list", action="store_true", help="name the places")
    options = parser.parse_args()
    chosen = [each for each in PLACES if not options.names or any(name in each.name for name in options.names)]
    if options.list:
        print("\n".join(each.name for each in chosen))
        return
    failed = 0
    with tempfile.TemporaryDirectory(prefix="odd-made-") as name:
        made = Path(name)
        kept = "--set checkpoint.every_steps=5"
        run_place(Place("", f"{_TRAIN} --run-dir $MADE/run --save $MADE/model.safetensors {kept}"), made)
        for place in chosen:
            if place.needs_root and os.geteuid():
                print(f"left out  {place.name}: needs root")
                continue
            start = time.monotonic()
            code, out, err = run_place(place, made)
            problem = problem_of(place, code, out, err)
            failed += bool(problem)
            last = next(iter(reversed(err.splitlines())), "")
            told, seconds = "WRONG" if problem else "right", time.monotonic() - start
            print(f"{told:<9} {place.name:<42} {seconds:5.1f} s  {problem or last}", flush=True)
    raise SystemExit(f"error: {failed} of {len(chosen)} places" if failed else 0)


if __name__ == "__main__":
    main()
