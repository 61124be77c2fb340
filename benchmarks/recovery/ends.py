"""Times from the last step to the end of `taihu train`, by the form of data: `python -m benchmarks ends --help`.

The last step's end is the time at which worker 0 began to train and the seconds of all steps: evaluation, the last
checkpoint, the model's file and the end of all processes come after it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from benchmarks.inputs.forms import FORMS, make_forms

__all__ = ["seconds_to_end"]

_FEW: Final = ("--batch", "4", "--servers", "1", "--workers", "2", "--quiet")


def seconds_to_end(folder: Path, form: str, steps: int) -> tuple[float, float]:
    """The seconds of a whole run, and those behind its last step; `folder` has data in every form.

    Raises:
        RuntimeError: the run failed, or a process had to be ended.
    """
    run = folder / f"run of {form}"
    command = [sys.executable, "-m", "taihu", "train", *FORMS[form], *_FEW, "--steps", str(steps)]
    begun = time.time()
    done = subprocess.run([*command, "--run-dir", str(run)], cwd=folder, capture_output=True, text=True, check=False)
    ended = time.time()
    if done.returncode or "is ended" in done.stdout:
        raise RuntimeError(f"{form}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    trains = next(datetime.fromisoformat(each["time"]) for each in events if each["event"] == "training")
    with (run / "steps.csv").open() as file:
        stepped = sum(float(row["step_seconds"]) for row in csv.DictReader(file))
    return ended - begun, ended - trains.timestamp() - stepped


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each form."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ends", description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--form", action="append", choices=FORMS, help="this one alone; may be given again")
    given = parser.parse_args(arguments)
    print("| data | whole run, s | behind the last step, s |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_forms(folder)
        for form in given.form or FORMS:
            whole_s, end_s = seconds_to_end(folder, form, given.steps)
            print(f"| {form} | {whole_s:.1f} | {end_s:.2f} |", flush=True)


if __name__ == "__main__":
    main()
