"""Recovery and checkpoints measured: `python -m benchmarks recovery --help`.

`memory`: of a small job the same worker is killed again and again, each time as soon as the run has gone on; resident
memory, threads and open files of all others are read before, and every so many recoveries. With --steps in place of
--recoveries nobody is killed. `disturbance`: intervals of 30 s of a run of resnet20, in turns one that begins with a
checkpoint and one without. `curves`: a run that ends halfway goes on with other numbers of servers and workers; the
losses of all of them in one picture.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from benchmarks.base.rows import in_page, load_rows, save_rows
from benchmarks.recovery.chaos import daemons_of

__all__ = ["disturbance_table", "memory_table"]

_MEMORY: Final = "memory, measured by benchmarks.recovery.recovery"
_DISTURBANCE: Final = "disturbance, measured by benchmarks.recovery.recovery"
_SMALL: Final = ("--model", "small_cnn", "--servers", "2", "--workers", "2", "--set", "train.evaluate=false")
_VICTIM: Final = "worker 1"
_RESNET: Final = (
    *("--model", "resnet20", "--data", "synthetic:3x32x32:samples=4096", "--batch", "8", "--servers", "2"),
    *("--workers", "3", "--set", "train.evaluate=false", "--set", "cluster.threads=1"),
)
_LONGEST_S: Final = 60.0
_WAYS: Final = {
    "2 servers, 3 workers": ("--servers", "2", "--workers", "3"),
    "3 servers, 2 workers": ("--servers", "3", "--workers", "2"),
    "1 server, 4 workers": ("--servers", "1", "--workers", "4"),
    "a ring of 3": ("--exchange", "ring", "--workers", "3"),
}


def measure_memory(recoveries: int, every: int, steps: int) -> list[dict[str, Any]]:
    """Rows of what each process that lives holds, after so many recoveries, or steps."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        keeping = ("--set", "checkpoint.every_steps=20", "--set", f"checkpoint.restarts={10 * recoveries + 1}")
        with _training(folder, (*_SMALL, *keeping, "--steps", "100000000")) as process:
            _await(lambda: any(folder.glob("checkpoints/*/manifest.json")), "no checkpoint")
            start = time.monotonic()

            def note(count: int) -> None:
                held = {role: _held(pid) for role, pid in sorted(daemons_of(process.pid).items()) if role != _VICTIM}
                done = {"recoveries": count} if recoveries else {"steps": count}
                rows.append({**done, "seconds": round(time.monotonic() - start, 1), "held": held})
                print(json.dumps(rows[-1]), flush=True)

            for count in range(recoveries):
                if count % every == 0:
                    note(count)
                resumed, kept = _resumed(folder), _steps(folder)
                os.kill(daemons_of(process.pid)[_VICTIM], signal.SIGKILL)
                _await(lambda before=resumed: _resumed(folder) > before, f"it did not go on after {count} recoveries")
                # Where a run gets no further, whoever is lost again is replaced later.
                _await(lambda before=kept: _steps(folder) > before, f"no checkpoint after {count} recoveries")
            for count in range(every, steps + 1, every) if steps else ():
                _await(lambda least=count: _steps(folder) >= least, f"no step {count}", _LONGEST_S * 60)
                note(count)
            if recoveries:
                note(recoveries)
    return rows


def _held(pid: int) -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return {
        "rss_kb": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "files": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
    }


def _resumed(folder: Path) -> int:
    return (folder / "events.jsonl").read_text().count('"event": "resumed"')


def _steps(folder: Path) -> int:
    kept = [int(path.parent.name.removeprefix("step-")) for path in folder.glob("checkpoints/*/manifest.json")]
    return max(kept, default=0)


def _await(condition: Any, otherwise: str, longest_s: float = _LONGEST_S) -> None:
    until = time.monotonic() + longest_s
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"error: {otherwise} within {longest_s:g} s")
        time.sleep(0.02)


@contextmanager
def _training(folder: Path, flags: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(_command(folder, flags), stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _command(folder: Path, flags: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "taihu", "train", *flags, "--run-dir", str(folder), "--quiet"]


def memory_table(rows: Sequence[dict[str, Any]]) -> str:
    """Memory, threads and files of each process, by recoveries or steps, as Markdown: the first rows and the last."""
    roles = list(rows[0]["held"])
    lines = [
        f"| after | {' | '.join(f'{role}: MB, threads, files' for role in roles)} |",
        "|---|" + "---|" * len(roles),
    ]
    for row in [*rows[:2], *rows[2:][-1:]]:
        after = f"{row['recoveries']:,} recoveries" if "recoveries" in row else f"{row['steps']:,} steps"
        held = [f"{each['rss_kb'] / 1024:.0f}, {each['threads']}, {each['files']}" for each in row["held"].values()]
        lines.append(f"| {after} | {' | '.join(held)} |")
    return "\n".join(lines)


def measure_disturbance(steps: int, every_s: float) -> list[dict[str, Any]]:
    """Rows of one run: the mean step in the interval behind a checkpoint, and in the one behind that, without any."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        own = f"checkpoint.every_seconds={2 * every_s}"
        flags = (*_RESNET, "--steps", str(steps), "--set", own)
        subprocess.run([*_command(folder, flags), "--json", f"{name}/r.json"], check=True, stdout=subprocess.DEVNULL)
        seconds = [float(row["step_seconds"]) for row in _rows(folder / "steps.csv")]
        memory = json.loads(Path(name, "r.json").read_text())["memory"]
        peaks = {each["process"]: each["peak_bytes"] for each in memory}
        kept = _checkpoints(folder / "logs")[:-1]  # that of the last step has nothing behind it
    for (step, kept_s), (following, following_s) in itertools.pairwise(kept):
        half = _steps_within(seconds, step, every_s)
        disturbed, others = seconds[step : step + half], seconds[step + half : following]
        # All stand still while state is copied, which is no part of a step.
        between_s = max(0.0, following_s - kept_s - sum(seconds[step:following]))
        disturbed_s = (sum(disturbed) + between_s) / half
        row = {"step": step, "disturbed_s": disturbed_s, "others_s": fmean(others), "steps": half}
        rows.append({**row, "every_s": every_s, "peak_bytes": peaks})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _checkpoints(logs: Path) -> list[tuple[int, float]]:
    """The steps of all checkpoints that were complete, and when they were, by the coordinator's log."""
    lines = (json.loads(line) for path in logs.glob("server-0*") for line in path.read_text().splitlines() if line)
    kept = (line for line in lines if line.get("event") == "checkpoint")
    return sorted((line["step"], datetime.fromisoformat(line["timestamp"]).timestamp()) for line in kept)


def _steps_within(seconds: Sequence[float], first: int, longest_s: float) -> int:
    """The number of steps from `first` on that take so long together."""
    ends = itertools.accumulate(seconds[first:])
    return sum(1 for _ in itertools.takewhile(lambda end: end < longest_s, ends))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def disturbance_table(rows: Sequence[dict[str, Any]]) -> str:
    """The mean steps of pairs of intervals, one with a checkpoint and one without, as Markdown."""
    every_s = rows[0]["every_s"]
    lines = [f"| pairs of {every_s:g} s | steps of each | mean step behind a checkpoint, ms | without, ms | ratio |"]
    lines.append("|---|---|---|---|---|")
    ratios = sorted(row["disturbed_s"] / row["others_s"] for row in rows)
    means = (1e3 * fmean(row[name] for row in rows) for name in ("disturbed_s", "others_s"))
    mean, without = (f"{each:.2f}" for each in means)
    steps = f"{min(row['steps'] for row in rows)} to {max(row['steps'] for row in rows)}"
    spread = f"{fmean(ratios):.3f} on average, median {median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f}"
    return "\n".join([*lines, f"| {len(rows)} | {steps} | {mean} | {without} | {spread} |"])


def draw_curves(steps: int, picture: Path) -> None:
    """Train half of `steps`, go on from there in each way, and draw the losses over the samples seen."""
    import matplotlib as mpl  # noqa: PLC0415 - only drawing needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    common = ("--model", "small_cnn", "--lr", "0.003", "--set", "optimizer.schedule=constant", "--steps")
    figure, axis = plt.subplots(figsize=(8, 4.2), layout="constrained")
    with tempfile.TemporaryDirectory() as name:
        first, *_ = _WAYS.items()
        whole, half = Path(name) / "whole", Path(name) / "half"
        subprocess.run(_command(whole, (*first[1], *common, str(steps))), check=True)
        subprocess.run(_command(half, (*first[1], *common, str(steps // 2))), check=True)
        _draw(axis, "undisturbed", whole, 0, 3)
        for label, flags in _WAYS.items():
            folder = Path(name) / label.replace(" ", "-")
            subprocess.run(_command(folder, ("--resume", str(half), *flags, "--steps", str(steps))), check=True)
            workers = int(flags[flags.index("--workers") + 1])
            _draw(axis, f"goes on with {label}", folder, steps // 2 * 3, workers)
    axis.set(xlabel="batches of all workers", ylabel="loss of worker 0, mean of 20 steps", yscale="log")
    axis.axvline(steps // 2 * 3, color="grey", linewidth=0.8)
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
    figure.savefig(picture, dpi=110)


def _draw(axis: Any, label: str, folder: Path, before: int, workers: int) -> None:
    losses = [float(row["worker_0_loss"]) for row in _rows(folder / "steps.csv")]
    means = [fmean(losses[max(0, step - 19) : step + 1]) for step in range(len(losses))]
    axis.plot([before + workers * (step + 1) for step in range(len(means))], means, label=label, linewidth=1.2)
    print(f"{label}: after 20 steps {means[19]:.4f}, at the end: {means[-1]:.4f}", flush=True)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("memory", "disturbance", "curves"))
    parser.add_argument("--recoveries", type=int, default=1000)
    parser.add_argument("--steps", type=int, help="memory: nobody is killed; disturbance, curves: of each run")
    parser.add_argument("--every", type=int, default=100, help="memory: recoveries, or steps, from row to row")
    parser.add_argument("--seconds", type=float, default=30.0, help="disturbance: from checkpoint to checkpoint")
    parser.add_argument("--json", type=Path, help="write the rows, after those that it holds")
    parser.add_argument(
        "--docs", type=Path, metavar="PAGE", help="put the table of --json between its marks, and end"
    )
    parser.add_argument("--draw", type=Path, default=Path("docs/resumed.png"), metavar="PICTURE")
    options = parser.parse_args()
    if options.what == "curves":
        draw_curves(options.steps or 600, options.draw)
        return
    mark, table = (_MEMORY, memory_table) if options.what == "memory" else (_DISTURBANCE, disturbance_table)
    rows = load_rows(options.json)
    if options.docs is not None:
        options.docs.write_text(in_page(options.docs.read_text(), mark, table(rows)))
        return
    if options.what == "memory":
        rows += measure_memory(0 if options.steps else options.recoveries, options.every, options.steps or 0)
    else:
        rows += measure_disturbance(options.steps or 10_000, options.seconds)
    save_rows(options.json, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
