"""`taihu train` on data of every form: it ends well, by itself, and what it forks has read no file of the user's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from support.commands import PATIENCE_S, Command
from threadpoolctl import threadpool_info

from benchmarks.inputs.forms import FORMS, make_forms
from taihu.core.process.results import read_json

_FEW = ("--steps", "3", "--batch", "4", "--servers", "1", "--workers", "1")
# Libraries with threads and files, and files of the user's.
_STRANGERS = {"pyarrow", "PIL", "pandas", "torch", "functions", "libraries", "neighbour"}
_OPENBLAS = 1 + sum(pool["num_threads"] - 1 for pool in threadpool_info() if pool["internal_api"] == "openblas")


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data in every form."""
    folder = tmp_path_factory.mktemp("forms")
    make_forms(folder)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_a_run_on_data_of_any_form_ends_well(form: str, forms: Path) -> None:
    notes = forms / f"{form}.notes"
    command = Command(
        "support.watched_forks",
        *("train", *FORMS[form], *_FEW, "--run-dir", f"run of {form}"),
        folder=forms,
        environment={"NOTES": str(notes)},
    )
    output, errors = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, errors) == (0, ""), output
    # A process that has to be killed at the end is told of.
    assert "is ended" not in output
    assert read_json(forms / f"run of {form}" / "results.json")["steps"] == 3
    if form == "function of libraries":
        assert (forms / "ended.txt").read_text() == "as a program"
    forks = [json.loads(line) for line in notes.read_text().splitlines()]
    # One looks at model and data; then come server, worker, and the process that stands by.
    assert [fork["event"] for fork in forks] == ["os.fork"] * 4
    for fork, (logs, pipes, sockets) in zip(forks, ((0, 2, 0), (1, 4, 0), (2, 6, 0), (2, 4, 2)), strict=True):
        assert not _STRANGERS & {name.partition(".")[0] for name in fork["modules"]}
        assert fork["threads"] <= _OPENBLAS
        # Of a daemon this process holds its log and an end of two pipes, of the one that begins both ends.
        kinds = Counter("log" if file.endswith(".log") else file.partition(":")[0] for file in fork["files"])
        assert kinds == +Counter(log=logs, pipe=pipes, socket=sockets)
