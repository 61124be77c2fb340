"""A transformer's script whose workers are killed again and again: `python -m benchmarks killed_scripts --help`.

The example `transformer_text.py` keeps its state by two lines more. A worker drawn at random is killed some steps
after all have gone on; losses and parameters are those of a run that nobody disturbs, to the bit, or it is an error.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from benchmarks.base.rows import publish, save_rows

__all__ = ["KINDS", "kept_example", "table"]

_PAGE: Final = "measured by benchmarks.pytorch.killed_scripts"
_EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "torch" / "transformer_text.py"
_LOOP: Final = "    for step in range(1, options.steps + 1):\n"
_KEPT: Final = (
    "    state = taihu.torch.state(model=model, optimizer=optimizer, warm_up=warm_up)\n"
    "    for step in state.batches(range(1, options.steps + 1)):\n"
)
_PID: Final = "    Path(f'pid.{taihu.torch.rank()}').write_text(str(__import__('os').getpid()))\n"
_TOLD: Final = "        loss.backward()\n"
_TELL: Final = (
    "        with Path(f'losses.{taihu.torch.rank()}').open('a') as told:\n"
    "            told.write(f'{step} {loss.item().hex()} {time.monotonic()}\\n')\n"
)
_END: Final = "\n\n\nif __name__"
_HASH: Final = (
    "\n"
    "    values = b''.join(p.detach().numpy().tobytes() for p in model.parameters())\n"
    "    Path(f'hash.{taihu.torch.rank()}').write_text(__import__('hashlib').sha256(values).hexdigest())\n"
)
KINDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"ring": (), "dlgs": ("--compression", "dlgs"), "servers": ("--servers", "2", "--compression", "topk")}
)
_WORKERS: Final = 3
_LOOK_S: Final = 0.01
_LONGEST_S: Final = 120.0


def kept_example() -> str:
    """The example with the lines that keep its state, and those that tell this benchmark of it."""
    text = _EXAMPLE.read_text()
    for former, later in (
        (_LOOP, _PID + _KEPT),
        (_TOLD, _TOLD + _TELL),
        (_END, _HASH + _END.removeprefix("\n")),
    ):
        if text.count(former) != 1:
            raise SystemExit(f"error: {_EXAMPLE}: not once there: {former!r}")
        text = text.replace(former, later)
    return text


class _Run:
    """A run of the script in `folder`."""

    def __init__(self, folder: Path, flags: Sequence[str], steps: int, restarts: int) -> None:
        folder.mkdir()
        (folder / "script.py").write_text(kept_example())
        self._folder = folder
        command = [sys.executable, "-P", "-m", "taihu", "run", "--workers", str(_WORKERS), *flags]
        self.process = subprocess.Popen(
            [*command, "--set", f"checkpoint.restarts={restarts}", "script.py", "--steps", str(steps)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def losses(self, rank: int = 0) -> list[tuple[int, str, float]]:
        """The steps that a worker has begun, each with its loss and its time, those begun again as well."""
        path = self._folder / f"losses.{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        told = [line.split() for line in lines]
        return [(int(each[0]), each[1], float(each[2])) for each in told if len(each) == len(("step", "loss", "s"))]

    def await_steps(self, count: int, after: int) -> None:
        """Return when there are so many steps more than `after`."""
        deadline = time.monotonic() + _LONGEST_S
        while len(self.losses()) < after + count:
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.process.kill()
                raise SystemExit(f"error: the run does not go on: {self.process.communicate()[1]}")
            time.sleep(_LOOK_S)

    def kill(self, rank: int) -> float:
        """Kill a worker; the time."""
        pid = int((self._folder / f"pid.{rank}").read_text())
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def end(self) -> tuple[dict[int, str], set[str]]:
        """The last loss of each step, and the hashes of all workers; raises SystemExit where the run has failed."""
        told = self.process.communicate()[1]
        if self.process.returncode:
            raise SystemExit(f"error: {told}")
        hashes = {(self._folder / f"hash.{rank}").read_text() for rank in range(_WORKERS)}
        return {step: loss for step, loss, _ in self.losses()}, hashes


def _measure(kind: str, kills: int, every: int, seed: int, folder: Path) -> dict[str, Any]:
    steps = (kills + 1) * (every + 4)
    whole = _Run(folder / "whole", KINDS[kind], steps, 0)
    undisturbed = whole.end()
    drawn = random.Random(seed)  # noqa: S311 - no secret
    run = _Run(folder / "killed", KINDS[kind], steps, 10 * kills)
    waits, again = [], []
    for _ in range(kills):
        before = len(run.losses())
        run.await_steps(drawn.randint(every - 3, every + 3), before)
        time.sleep(drawn.uniform(0.0, 0.05))
        killed_s = run.kill(drawn.randrange(_WORKERS))
        time.sleep(_LOOK_S)
        made = run.losses()
        begun = [max(step for step, *_ in run.losses(rank)) for rank in range(_WORKERS)]
        last, completed = max(begun), min(begun) - 1
        deadline = time.monotonic() + _LONGEST_S
        while not (new := [at for step, _, at in run.losses() if step > last and at > killed_s]):
            if time.monotonic() > deadline or run.process.poll() is not None:
                run.process.kill()
                raise SystemExit(f"error: the run does not go on: {run.process.communicate()[1]}")
            time.sleep(_LOOK_S)
        waits.append(new[0] - killed_s)
        behind = [step for step, _, at in run.losses()[len(made) :] if at > killed_s]
        again.append((sum(step <= completed for step in behind), sum(step <= begun[0] for step in behind)))
    disturbed = run.end()
    if disturbed != undisturbed:
        raise SystemExit(f"error: {kind}: losses or parameters are others than those of an undisturbed run")
    return {"kind": kind, "kills": kills, "steps": steps, "waits_s": waits, "again": again}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a page shows them."""
    head = (
        "| run | kills | steps | kill to the next new step: median, 95 % | steps made again that all workers had "
        "completed | steps begun again by worker 0 | bits |\n|---|---|---|---|---|---|---|\n"
    )
    lines = []
    for row in rows:
        median, most = np.quantile(row["waits_s"], [0.5, 0.95])
        lines.append(
            f"| {row['kind']} | {row['kills']} | {row['steps']:,} | {median:.2f} s, {most:.2f} s | "
            f"{sum(each for each, _ in row['again'])} | {sum(each for _, each in row['again'])} | the same |\n"
        )
    return head + "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--every", type=int, default=12, help="steps, about, from one kill to the next")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--markdown", type=Path, help="put the table into this page")
    options = parser.parse_args()
    rows = []
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(_measure(kind, options.kills, options.every, options.seed, Path(folder)))
        print(table(rows[-1:]), flush=True)
    if options.json:
        save_rows(options.json, rows)
    if options.markdown:
        publish(table(rows), _PAGE, options.markdown)


if __name__ == "__main__":
    main()
