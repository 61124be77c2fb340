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
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.base.rows import publish, save_rows

__all__ = ["KINDS", "KeptRun", "Made", "kept_example", "table"]

_PAGE: Final = "measured by benchmarks.pytorch.killed_scripts"
_EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "torch" / "transformer_text.py"
_LOOP: Final = "    for step in range(1, options.steps + 1):\n"
_KEPT: Final = (
    "    state = taihu.torch.state(model=model, optimizer=optimizer, warm_up=warm_up)\n"
    "    for step in state.batches(range(1, options.steps + 1)):\n"
)
_DRAWN: Final = (
    "        begins = torch.randint(len(text) - options.context - 1, (options.batch,))\n"
    "        begins = begins[taihu.torch.rank() :: taihu.torch.world_size()]\n"
)
_ELASTIC: Final = (
    "    state = taihu.torch.state(model=model, optimizer=optimizer, warm_up=warm_up)\n"
    "    sampler = taihu.torch.ElasticSampler(len(text) - options.context - 1, batch=options.batch)\n"
    "    for begins in state.batches(sampler):\n"
    "        step = state.step + 1\n"
    "        if step > options.steps:\n"
    "            break\n"
)
_PID: Final = "    Path(f'pid.{taihu.torch.rank()}').write_text(str(__import__('os').getpid()))\n"
_TOLD: Final = "        loss.backward()\n"
_TELL: Final = (
    "        with Path(f'losses.{taihu.torch.rank()}' if not state.is_given_up else '/dev/null').open('a') as told:\n"
    "            told.write(f'{step} {loss.item().hex()} {time.monotonic()} {len(begins)} '\n"
    '                       f\'{__import__("os").environ.get("TAIHU_LIVES", 0)}\\n\')\n'
)
_END: Final = "\n\n\nif __name__"
_HASH: Final = (
    "\n"
    "    values = b''.join(p.detach().numpy().tobytes() for p in model.parameters())\n"
    "    Path(f'hash.{taihu.torch.rank()}').write_text(__import__('hashlib').sha256(values).hexdigest())\n"
)
KINDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "ring": (),
        "ring, ElasticSampler": (),
        "dlgs": ("--compression", "dlgs"),
        "servers": ("--servers", "2", "--compression", "topk"),
    }
)
_WORKERS: Final = 3
_LOOK_S: Final = 0.01
_LONGEST_S: Final = 120.0


def kept_example(*, is_elastic: bool) -> str:
    """The example with the lines that keep its state, and those that tell this benchmark of it.

    Args:
        is_elastic: whether an `ElasticSampler` draws its batches.
    """
    text = _EXAMPLE.read_text()
    for former, later in (
        (_LOOP, _PID + (_ELASTIC if is_elastic else _KEPT)),
        (_DRAWN, "" if is_elastic else _DRAWN),
        (_TOLD, _TOLD + _TELL),
        (_END, _HASH + _END.removeprefix("\n")),
    ):
        if text.count(former) != 1:
            raise SystemExit(f"error: {_EXAMPLE}: not once there: {former!r}")
        text = text.replace(former, later)
    return text


class Made(NamedTuple):
    """A step as a worker has made it.

    Attributes:
        step: from 1.
        loss: of its samples, in hexadecimal digits.
        at_s: when its backward had ended, by the monotonic clock.
        samples: that it had.
        life: of the script, from 0.
    """

    step: int
    loss: str
    at_s: float
    samples: int
    life: int


def _made(words: Sequence[str]) -> Made:
    step, loss, at_s, samples, life = words
    return Made(int(step), loss, float(at_s), int(samples), int(life))


class KeptRun:
    """A run of the script in `folder`, which is made; the run's own is `run` in it."""

    def __init__(
        self,
        folder: Path,
        flags: Sequence[str],
        steps: int,
        *,
        restarts: int = 0,
        workers: int = _WORKERS,
        is_elastic: bool = False,
    ) -> None:
        folder.mkdir()
        (folder / "script.py").write_text(kept_example(is_elastic=is_elastic))
        self._folder, self._workers = folder, workers
        command = [sys.executable, "-P", "-m", "taihu", "run", "--workers", str(workers), "--run-dir", "run", *flags]
        self.process = subprocess.Popen(
            [*command, "--set", f"checkpoint.restarts={restarts}", "script.py", "--steps", str(steps)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def losses(self, rank: int = 0) -> list[Made]:
        """The steps that a worker has made, those made again as well."""
        path = self._folder / f"losses.{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [_made(words) for line in lines if len(words := line.split()) == len(Made._fields)]

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
        os.kill(int(self.pids()[rank]), signal.SIGKILL)
        return time.monotonic()

    def pids(self) -> list[str]:
        """The processes of all workers."""
        return [(self._folder / f"pid.{rank}").read_text() for rank in range(self._workers)]

    def end(self, workers: int = _WORKERS) -> tuple[dict[int, str], set[str]]:
        """The last loss of each step, and the hashes of all workers; raises SystemExit where the run has failed."""
        told = self.process.communicate()[1]
        if self.process.returncode:
            raise SystemExit(f"error: {told}")
        hashes = {(self._folder / f"hash.{rank}").read_text() for rank in range(workers)}
        return {made.step: made.loss for made in self.losses()}, hashes


def _measure(kind: str, kills: int, every: int, seed: int, folder: Path) -> dict[str, Any]:
    steps = (kills + 1) * (every + 4)
    is_elastic = "Elastic" in kind
    whole = KeptRun(folder / "whole", KINDS[kind], steps, is_elastic=is_elastic)
    undisturbed = whole.end()
    drawn = random.Random(seed)  # noqa: S311 - no secret
    run = KeptRun(folder / "killed", KINDS[kind], steps, restarts=10 * kills, is_elastic=is_elastic)
    waits, again, others = [], [], 0
    for _ in range(kills):
        before = len(run.losses())
        run.await_steps(drawn.randint(every - 3, every + 3), before)
        time.sleep(drawn.uniform(0.0, 0.05))
        pids = run.pids()
        victim = drawn.randrange(_WORKERS)
        killed_s = run.kill(victim)
        time.sleep(_LOOK_S)
        made = run.losses()
        begun = [max(each.step for each in run.losses(rank)) for rank in range(_WORKERS)]
        last, completed = max(begun), min(begun) - 1
        deadline = time.monotonic() + _LONGEST_S
        # Others may have had all that they need of a step from the killed one: its successor has to make it.
        while not (new := [each.at_s for each in run.losses(victim) if each.step > last and each.at_s > killed_s]):
            if time.monotonic() > deadline or run.process.poll() is not None:
                run.process.kill()
                raise SystemExit(f"error: the run does not go on: {run.process.communicate()[1]}")
            time.sleep(_LOOK_S)
        waits.append(new[0] - killed_s)
        others += sum(now != then for now, then in zip(run.pids(), pids, strict=True)) - 1
        behind = [each.step for each in run.losses()[len(made) :] if each.at_s > killed_s]
        again.append((sum(step <= completed for step in behind), sum(step <= begun[0] for step in behind)))
    disturbed = run.end()
    if disturbed != undisturbed:
        raise SystemExit(f"error: {kind}: losses or parameters are others than those of an undisturbed run")
    return {"kind": kind, "kills": kills, "steps": steps, "waits_s": waits, "again": again, "others": others}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a page shows them."""
    head = (
        "| run | kills | steps | kill to the next new step: median, 95 % | steps made again that all workers had "
        "completed | steps begun again by worker 0 | survivors started again | bits |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    lines = []
    for row in rows:
        median, most = np.quantile(row["waits_s"], [0.5, 0.95])
        lines.append(
            f"| {row['kind']} | {row['kills']} | {row['steps']:,} | {median:.2f} s, {most:.2f} s | "
            f"{sum(each for each, _ in row['again'])} | {sum(each for _, each in row['again'])} | "
            f"{row['others']} | the same |\n"
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
