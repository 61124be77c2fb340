"""Rows on their way to a logger: each once, in order, over all lives; whoever fails or hangs disturbs nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from taihu.core.job import load_job
from taihu.core.job.loggers import Kind, LoggedRow, LoggedRun, Logger, State
from taihu.worker.reporting.loggers.handing import Handed, HandedOn
from taihu.worker.reporting.loggers.opening import open_loggers
from taihu.worker.reporting.run_log import CsvTables, RunLog
from taihu.worker.training.progress import Evaluation, StepSample

SAMPLE = StepSample(0.5, 0.02, 0.01, 0.0, 0.0, 0.005, 0.001, 100, 200)


class Told:
    """Keeps all that it is told, over all lives; `has` is what it says is there already."""

    def __init__(self, has: Mapping[Kind, int] | None = None) -> None:
        self.rows: list[LoggedRow] = []
        self.begun: list[Mapping[Kind, int]] = []
        self.ended: list[State] = []
        self._has = has

    def begin(self, handed: Mapping[Kind, int]) -> Mapping[Kind, int]:
        self.begun.append(handed)
        return handed if self._has is None else self._has

    def log(self, rows: Sequence[LoggedRow]) -> None:
        assert 0 < len(rows) <= 1000
        self.rows += rows

    def end(self, state: State) -> None:
        self.ended.append(state)

    def steps(self, kind: Kind) -> list[int]:
        return [row.step for row in self.rows if row.kind == kind]


class Broken(Told):
    """Fails, or waits, where it is told to."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def log(self, rows: Sequence[LoggedRow]) -> None:
        self._act()
        super().log(rows)


def handed_to(
    logger: Logger, folder: Path, said: list[str], tables: tuple[Path, ...] = (), patience_s: float = 120.0
) -> HandedOn:
    return HandedOn("mine", lambda: logger, folder, tables or (folder,), said.append, patience_s=patience_s)


def run_log(folder: Path, handed: HandedOn, begun_after: int = 0) -> RunLog:
    tables = CsvTables(folder, begun_after)
    return RunLog([tables], steps_per_epoch=4, learning_rate=lambda _: 0.1, interval_s=1000.0, loggers=[handed])


def live(folder: Path, logger: Logger, steps: range, how: str = "finished") -> list[str]:
    """One life of a run that makes these steps."""
    said: list[str] = []
    log = run_log(folder, handed_to(logger, folder, said), steps.start - 1)
    log.goes_on(steps.start - 1)
    with log:
        for step in steps:
            log.stepped(step, SAMPLE, 1.0)
            if step % 2 == 0:
                log.evaluated(evaluation(step))
        log.happened(how)
    return said


def evaluation(step: int) -> Evaluation:
    return Evaluation(step, step // 2, 0.25, 1.5, 1.25, None, {"accuracy": 0.5})


def test_rows_come_in_order_by_the_names_that_loggers_show(tmp_path: Path) -> None:
    logger = Told()
    assert live(tmp_path, logger, range(1, 5)) == []
    assert [(row.kind, row.step) for row in logger.rows] == [
        ("step", 1),
        ("step", 2),
        ("test", 2),
        ("step", 3),
        ("step", 4),
        ("test", 4),
    ]
    assert logger.rows[0].values == {
        "loss/worker_0": 0.5,
        "learning_rate": 0.1,
        "seconds/step": 0.02,
        "seconds/compute": 0.01,
        "seconds/compress": 0.0,
        "seconds/compress_wait": 0.0,
        "seconds/exchange": 0.005,
        "seconds/wait": 0.001,
        "exchange/sent_bytes": 100,
        "exchange/received_bytes": 200,
        "exchange/selected_ratio": 1.0,
        "loss_scale": 1.0,
    }
    assert logger.rows[2].values == {"epoch": 1, "loss/train_mean": 1.5, "test/loss": 1.25, "test/accuracy": 0.5}
    assert (logger.begun, logger.ended) == ([{}], ["finished"])


@pytest.mark.parametrize("begun_after", [3, 6, 8])
def test_a_run_that_goes_on_hands_over_each_step_once(begun_after: int, tmp_path: Path) -> None:
    """Steps that are made again have been handed over; those of a table that its logger lacks come first."""
    logger = Told()
    live(tmp_path, logger, range(1, 9), how="recovering")
    live(tmp_path, logger, range(begun_after + 1, 12))
    assert logger.steps("step") == list(range(1, 12))
    assert logger.steps("test") == [2, 4, 6, 8, 10]
    assert logger.begun == [{}, {"step": 8, "test": 8}]
    assert logger.ended == ["interrupted", "finished"]


@pytest.mark.parametrize(("has", "begun_after"), [({"step": 3, "test": 2}, 8), ({"step": 7}, 6), ({}, 4)])
def test_a_logger_that_has_less_gets_it_from_the_tables(
    has: dict[Kind, int], begun_after: int, tmp_path: Path
) -> None:
    live(tmp_path, Told(), range(1, 9))
    logger = Told(has)
    live(tmp_path, logger, range(begun_after + 1, 11))
    assert logger.steps("step") == list(range(has.get("step", 0) + 1, 11))
    assert logger.steps("test") == [step for step in (2, 4, 6, 8, 10) if step > has.get("test", 0)]
    assert {row.values["seconds/step"] for row in logger.rows if row.kind == "step"} == {0.02}


def test_a_table_that_was_cut_off_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    live(tmp_path, Told(), range(1, 5))
    former = tmp_path / "former"
    former.mkdir()
    for name in ("steps.csv", "epochs.csv"):
        (former / name).write_text((tmp_path / name).read_text())
    with (former / "steps.csv").open("a") as file:
        file.write("5,1,0.2")
    (tmp_path / "now").mkdir()
    logger = Told()
    handed = handed_to(logger, tmp_path / "now", [], (former, tmp_path / "now"))
    handed.goes_on(9)
    handed.close()
    assert logger.steps("step") == [1, 2, 3, 4]


def test_a_file_of_what_was_handed_over_outlives_a_kill_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "handed"
    with closing(Handed(path)) as handed:
        handed.note([LoggedRow("step", 12, {}), LoggedRow("test", 10, {}), LoggedRow("step", 13, {})])
        with closing(Handed(path)) as again:  # the first one was not closed
            assert again.steps == {"step": 13, "test": 10}
    path.write_text('{"step": 1')
    with closing(Handed(path)) as nothing:
        assert nothing.steps == {}


def test_one_that_fails_is_given_up_with_one_line(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("the service\nhas gone.")

    said = live(tmp_path, Broken(fail), range(1, 200))
    assert said == ["run.loggers: mine: the service has gone; the run goes on without it"]


def test_one_that_hangs_is_left_behind_at_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    goes_on = threading.Event()
    logger = Broken(lambda: goes_on.wait(120))
    with run_log(tmp_path, handed_to(logger, tmp_path, said, patience_s=0.1)) as log:
        log.stepped(1, SAMPLE, 1.0)
    assert said == [
        "run.loggers: mine: it is not done 0.1 s behind the end of the run, which waits no longer; "
        "the run goes on without it"
    ]
    goes_on.set()


def test_rows_that_wait_for_a_slow_one_are_bounded_and_those_that_are_dropped_counted(tmp_path: Path) -> None:
    said: list[str] = []
    goes_on = threading.Event()
    logger = Broken(lambda: goes_on.wait(120))
    handed = handed_to(logger, tmp_path, said)
    for step in range(1, 12_001):
        handed.add_step({"step": step})
    assert said == ["run.loggers: mine: it is too slow, 10,000 rows wait for it; others are dropped"]
    goes_on.set()
    handed.close()
    steps = logger.steps("step")
    assert 10_000 <= len(steps) <= 11_000  # those that it has taken, and those that waited
    assert steps == list(range(1, len(steps) + 1))
    assert said[1:] == [f"run.loggers: mine: {12_000 - len(steps):,} rows were dropped, it was too slow for them"]


def test_own_values_belong_to_a_step_and_may_come_several_times(tmp_path: Path) -> None:
    logger = Told()
    with run_log(tmp_path, handed_to(logger, tmp_path, [])) as log:
        log.logged({"loss": 2.0}, 0)
        log.stepped(1, SAMPLE, 1.0)
        log.logged({"loss": 1.0}, 1)
        log.logged({"accuracy": 0.5}, 1)
    assert logger.steps("own") == [0, 1, 1]


def test_a_logger_is_told_the_settings_and_no_paths_or_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[LoggedRun] = []

    def made(name: str, run: LoggedRun) -> Told:
        seen.append(run)
        return Told()

    monkeypatch.setattr("taihu.worker.reporting.loggers.opening.make_logger", made)
    given: dict[str, dict[str, object]] = {
        "run": {"loggers": "mine"},
        "train": {"batch": 9},
        "cluster": {"coordinator": "host:7"},
        "data": {"name": str(tmp_path / "secret" / "faces")},
        "security": {"token_file": "/secret/token"},
        "optimizer": {"milestones": [3, 5], "schedule": "step"},
    }
    for script in (None, "train.py"):
        (handed,) = open_loggers(load_job(None, given), tmp_path, pytest.fail, script)
        handed.close()
    built_in, scripts = seen
    assert built_in.settings["train.batch"] == 9
    assert built_in.settings["optimizer.milestones"] == "[3, 5]"
    assert "secret" not in json.dumps(dict(built_in.settings))
    assert "host:7" not in json.dumps(dict(built_in.settings))
    assert built_in.name == tmp_path.name
    assert built_in.kept == tmp_path / "loggers" / "mine"
    assert "taihu.script" not in built_in.tags
    assert scripts.tags["taihu.script"] == "train.py"
    assert not {key for key in scripts.settings if key.startswith(("model.", "data.", "train.", "optimizer."))}
    assert "compression.method" in scripts.settings


def test_a_run_that_goes_on_in_another_folder_goes_on_with_the_same_loggers(tmp_path: Path) -> None:
    former = tmp_path / "former"
    (former / "loggers" / "mine").mkdir(parents=True)
    (former / "loggers" / "mine" / "id").write_text("1234")
    (tmp_path / "now").mkdir()
    resume = str(former / "checkpoints" / "step-000120")
    resumed: dict[str, dict[str, object]] = {"checkpoint": {"resume": resume}, "run": {"loggers": ["mine"]}}
    said: list[str] = []
    for handed in open_loggers(load_job(None, resumed), tmp_path / "now", said.append):
        handed.close()
    assert (tmp_path / "now" / "loggers" / "mine" / "id").read_text() == "1234"
    assert said == [
        "run.loggers: mine: run.loggers: no logger is called 'mine'; known here: tensorboard, mlflow, trackio, "
        "wandb; the run goes on without it"
    ]
