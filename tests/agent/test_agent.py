"""An agent that is told what to run: what it starts, replaces and ends, and when it ends itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from taihu.agent.agent import Agent
from taihu.agent.attending import Answer, Attending
from taihu.core.base.errors import PeerUnreachableError, RunError, StaleError
from taihu.core.checkpoint.ended import EndedRun, keep_end
from taihu.core.coordination.membership.members import RunState
from taihu.core.job import Job
from taihu.core.process.entry import Interrupts
from taihu.local.processes.processes import DaemonFailedError

RUNNING = RunState.RUNNING
KILLED = -9


class Workers:
    """Processes that do nothing: `codes` by name, None of those that live; `log` of what was done to them.

    `stopped` are those that were for so long that they are to be ended.
    """

    def __init__(self) -> None:
        self.codes: dict[str, int | None] = {}
        self.log: list[str] = []
        self.stopped: list[str] = []

    def start(self, name: str, module: str, arguments: Sequence[str]) -> None:
        assert module == "taihu.worker"
        self.codes[name] = None
        self.log.append(f"start {name} {' '.join(arguments)}")

    def replace(self, name: str) -> None:
        self.codes[name] = None
        self.log.append(f"replace {name}")

    def dismiss(self, name: str) -> None:
        del self.codes[name]
        self.log.append(f"dismiss {name}")

    def end_stopped(self) -> None:
        for name in self.stopped:
            self.codes[name] = KILLED
        self.stopped.clear()

    def wait(self, timeout_s: float) -> None:
        self.log.append("wait")

    def check(self, awaiting: Collection[str] = ()) -> bool:
        for name, code in self.codes.items():
            if code not in (None, 0, 130) and name not in awaiting:
                raise DaemonFailedError(f"{name} ended", name, abs(code), was_killed=code < 0)
        return False

    @property
    def living(self) -> list[str]:
        return [name for name, code in self.codes.items() if code is None]

    @property
    def interrupted(self) -> list[str]:
        return [name for name, code in self.codes.items() if code == 130]


class Machine:
    """An agent, its workers, and the words of the coordinator."""

    def __init__(self, folder: Path, restarts: int = 3) -> None:
        self.job = Job.model_validate(
            {
                "cluster": {"servers": 1, "workers": 4, "coordinator": "127.0.0.1:1", "connect_timeout_s": 60},
                "checkpoint": {"dir": str(folder), "restarts": restarts},
            }
        )
        self.workers = Workers()
        self.attending = Attending(self.job, 7, "here")
        self.agent = Agent(
            self.job,
            self.workers,  # type: ignore[arg-type]
            lambda rank, beside: [f"{rank}/{beside}"],
            attending=self.attending,
            interrupts=Interrupts(),
        )
        self.now = 0.0

    def hears(self, *ranks: int, state: RunState = RUNNING, reason: str = "") -> int | None:
        return self.look(Answer(ranks, state, reason, heard_s=self.now))

    def look(self, answer: Answer) -> int | None:
        self.now += 1.0
        return self.agent.look(answer, self.now)

    def done(self) -> list[str]:
        log, self.workers.log = self.workers.log, []
        return log


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_runs_what_it_is_told(machine: Machine) -> None:
    assert machine.hears() is None
    assert machine.done() == []
    assert machine.hears(0, 3) is None
    assert machine.done() == ["start worker 0 0/2", "start worker 3 3/2"]
    assert machine.attending.runs == (0, 3)
    assert machine.hears(3, 1) is None
    assert machine.done() == ["dismiss worker 0", "start worker 1 1/2"]
    assert machine.attending.runs == (1, 3)


def test_what_it_heard_before_holds_while_nobody_answers(machine: Machine) -> None:
    machine.hears(0)
    machine.done()
    assert machine.look(Answer((), RUNNING, error=PeerUnreachableError("away"), heard_s=0.0)) is None
    assert machine.done() == []
    assert machine.workers.living == ["worker 0"]


def test_a_worker_that_is_killed_is_started_again(machine: Machine) -> None:
    machine.hears(0, 1)
    machine.workers.codes["worker 1"] = KILLED
    machine.done()
    assert machine.hears(0, 1) is None
    machine.hears(0, 1)
    assert machine.done() == ["replace worker 1"]
    assert machine.attending.runs == (0, 1)


def test_a_worker_that_was_stopped_for_too_long_is_started_again(machine: Machine) -> None:
    machine.hears(0, 1)
    machine.workers.stopped = ["worker 1"]
    machine.done()
    machine.hears(0, 1)
    machine.hears(0, 1)
    assert machine.done() == ["replace worker 1"]


def test_a_worker_that_is_killed_and_runs_elsewhere_then_is_not(machine: Machine) -> None:
    machine.hears(0, 1)
    machine.workers.codes["worker 1"] = KILLED
    machine.hears(0, 1)
    machine.done()
    machine.hears(0)
    machine.hears(0)
    assert [each for each in machine.done() if each.startswith("replace")] == []


def test_a_worker_that_somebody_interrupts_is_started_again_while_the_run_goes_on(machine: Machine) -> None:
    machine.hears(0, 1)
    machine.workers.codes["worker 1"] = 130
    machine.done()
    for _ in range(5):
        assert machine.hears(0, 1) is None
    assert machine.done() == ["replace worker 1"]


def test_the_only_worker_that_somebody_interrupts_does_not_end_the_agent(machine: Machine) -> None:
    machine.hears(0)
    machine.workers.codes["worker 0"] = 130
    machine.done()
    assert machine.look(Answer((0,), RUNNING, heard_s=0.0)) is None
    for _ in range(3):
        assert machine.hears(0) is None
    assert machine.done() == ["replace worker 0"]


def test_workers_that_were_interrupted_end_it_where_nobody_says_that_the_run_goes_on(machine: Machine) -> None:
    machine.hears(0)
    machine.workers.codes["worker 0"] = 130
    away = Answer((0,), RUNNING, error=PeerUnreachableError("away"), heard_s=0.0)
    codes = [machine.look(away) for _ in range(4)]
    assert codes == [None, None, None, 130]


def test_a_worker_that_is_killed_too_often_ends_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, restarts=1)
    machine.hears(0)
    machine.workers.codes["worker 0"] = KILLED
    machine.hears(0)
    machine.hears(0)
    machine.workers.codes["worker 0"] = KILLED
    with pytest.raises(DaemonFailedError, match=r"checkpoint\.restarts = 1 within an hour are used up"):
        machine.hears(0)


def test_a_worker_that_fails_ends_it(machine: Machine) -> None:
    machine.hears(0)
    machine.workers.codes["worker 0"] = 2
    with pytest.raises(DaemonFailedError) as raised:
        machine.hears(0)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("codes", "state", "expected"),
    [((0, 0), RunState.FINISHED, 0), ((0, 130), RunState.STOPPED, 130), ((0, 130), RunState.FINISHED, 0)],
)
def test_it_ends_as_the_run_does(codes: tuple[int, int], state: RunState, expected: int, machine: Machine) -> None:
    machine.hears(0, 1)
    machine.workers.codes["worker 0"] = codes[0]
    assert machine.hears(0, 1) is None
    machine.workers.codes["worker 1"] = codes[1]
    assert machine.hears(0, 1, state=state) == expected
    assert [each for each in machine.done() if "dismiss" in each] == []


@pytest.mark.parametrize(
    ("state", "expected"), [(RunState.FINISHED, 0), (RunState.STOPPED, 130), (RunState.RECOVERING, None)]
)
def test_one_that_stands_by_ends_with_the_run(state: RunState, expected: int | None, machine: Machine) -> None:
    assert machine.hears() is None
    assert machine.hears(state=state) == expected


def test_one_that_stands_by_tells_why_the_run_failed(machine: Machine) -> None:
    with pytest.raises(RunError, match="worker 3: no data"):
        machine.hears(state=RunState.FAILED, reason="worker 3: no data")


def test_nobody_is_started_when_the_run_has_ended(machine: Machine) -> None:
    assert machine.hears(0, 1, state=RunState.FINISHED) == 0
    assert machine.done() == []


def test_one_that_leaves_waits_until_others_have_its_workers(machine: Machine) -> None:
    machine.hears(0, 1)
    machine.agent.leave("interrupted by SIGTERM")
    assert machine.attending.leaves
    assert machine.hears(0, 1) is None
    assert machine.hears() == 130
    assert machine.done()[-2:] == ["dismiss worker 0", "dismiss worker 1"]


def test_one_that_leaves_a_run_that_does_not_answer_is_gone(machine: Machine) -> None:
    machine.agent.leave("interrupted by SIGTERM")
    assert machine.look(Answer(error=PeerUnreachableError("away"))) == 130


def test_who_is_refused_says_why(machine: Machine) -> None:
    machine.attending.answer = Answer(error=StaleError("this is job 'a', not 'b'; check the address"))
    with pytest.raises(StaleError, match="not 'b'"):
        machine.look(machine.attending.answer)


def test_one_that_finds_nobody_waits_as_long_as_any_process(machine: Machine) -> None:
    away = Answer(error=PeerUnreachableError("coordinator at 127.0.0.1:1: away"), heard_s=0.0)
    while machine.now < 60.0:
        assert machine.look(away) is None
    with pytest.raises(PeerUnreachableError, match="away"):
        machine.look(away)


def test_the_end_of_a_run_is_found_where_it_is_kept(machine: Machine, tmp_path: Path) -> None:
    away = Answer(error=PeerUnreachableError("away"), heard_s=0.0)
    assert machine.look(away) is None
    settings = dict(machine.job.shared_settings)
    keep_end(tmp_path, EndedRun(generation=1, settings=settings, parameters_sha256="0" * 64))
    assert machine.look(away) == 0
