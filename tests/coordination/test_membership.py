"""The membership of a run against recorded scenarios."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.memberships import make_membership
from support.scenarios import check_scenario, parse_options, scenario_paths

from taihu.core.base.errors import StaleError
from taihu.core.coordination.membership.liveness import Waits
from taihu.core.coordination.membership.members import MemberId, Progress, Role, RunState
from taihu.core.coordination.membership.membership import Membership
from taihu.core.coordination.membership.outcome import Terms
from taihu.core.coordination.membership.stopping import PendingStop
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.model.run_length import RunLength

_GENERATION = {"generation": "0"}
_RUN = {
    **_GENERATION,
    "servers": "1",
    "workers": "1",
    "lost-after": "5",
    "still-after": "inf",
    "join-timeout": "30",
    "workers-meet": "no",
    "keeps-end": "no",
    "after": "",
}
_MEMBER = {"incarnation": "1", "job": "demo"}
_JOIN = {
    **_MEMBER,
    **_GENERATION,
    "settings": "same",
    "address": "",
    "model": "fc1:3x2 fc2:2",
    "with": "",
    "length": "",
}
_BEAT = {
    **_MEMBER,
    "step": "0",
    "knowing": "0",
    "moves": "0",
    "waiting-for": "",
    "busy-with": "",
    "in-step": "0",
    "slow-after": "0",
    "begun": "",
    "waits-in": "",
}
_FINISH = {**_MEMBER, "parameters": "", "step": "", "of": "0", "begun": "", "exit-code": "", "and": ""}


class Interpreter:
    """Scenario commands on the membership of job `demo`: `run ...`, questions, and `<seconds>s <who> <does> ...`.

    A command is answered with the state of the run. Unless it says otherwise a member is incarnation 1, has the
    settings `same` and, if it is a worker, a model of the layers fc1 (3x2) and fc2 (2).
    """

    def __init__(self) -> None:
        self._membership = make_membership(0, 0)
        self._pending = PendingStop()

    def __call__(self, line: str) -> str:
        first, *words = shlex.split(line)
        if first == "run":
            self._start(parse_options(words, _RUN))
        elif not words:
            return self._answer(first)
        elif (answer := self._at(float(first.removesuffix("s")), words)) is not None:
            return answer
        return describe_run(self._membership)

    def _start(self, options: Mapping[str, str]) -> None:
        """Another run or, `after` a step of its, the next generation of the same."""
        if not options["after"]:
            self._pending = PendingStop()
        self._membership = make_membership(
            int(options["servers"]),
            int(options["workers"]),
            Waits(
                float(options["lost-after"]),
                float(options["join-timeout"]),
                still_after_s=float(options["still-after"]),
            ),
            Terms(
                recovers=options["generation"] != "0",
                keeps_end=options["keeps-end"] == "yes",
                has_steps=int(options["after"] or 0) > 0,
            ),
            digest="same",
            settings={"train.batch": "32", "train.seed": "1", "model.name": '"small_cnn"', "data.name": '"digits"'},
            workers_meet=options["workers-meet"] == "yes",
            generation=int(options["generation"]),
            pending=self._pending,
        )

    def _answer(self, question: str) -> str:
        match question:
            case "state":
                return describe_members(self._membership)
            case "addresses?":
                return ", ".join(self._membership.roster.peer_addresses() or ["not known yet"])
            case "stops?":
                return describe_stop(self._membership)
            case "stalls?":
                return self._membership.liveness.stall or "no"
            case "over?":
                return "yes" if self._membership.outcome.over() else "no"
        raise ValueError(f"unknown question {question!r}")

    def _at(self, now: float, words: Sequence[str]) -> str | None:
        match words:
            case ["nothing", "happens"]:
                self._membership.liveness.look(now)
            case ["run", "stops", reason]:
                self._membership.outcome.ask_to_stop(reason)
            case [role, rank, "leaves", reason]:
                self._membership.outcome.ask_to_stop(f"{role} {rank}: {reason}", goes_on=True)
            case ["end", "is", "kept"]:
                self._membership.outcome.conclude()
            case ["end", "is", "not", "kept"]:
                self._membership.outcome.conclude(kept=False)
            case ["run", "fails", reason]:
                self._membership.outcome.fail(reason)
            case [role, rank, action, *rest]:
                return self._act(now, MemberId(Role(role), int(rank)), action, rest)
            case _:
                raise ValueError(f"unknown command {words}")
        return None

    def _act(self, now: float, member: MemberId, action: str, rest: Sequence[str]) -> str | None:
        match action:
            case "joins":
                self._join(now, member, parse_options(rest, _JOIN))
            case "brings":
                layout = layout_from_text(" ".join(rest))
                assert layout is not None
                self._membership.admission.bring_layout(member, 1, layout, job="demo")
            case "beats":
                options = parse_options(rest, _BEAT)
                progress = Progress(
                    step=int(options["step"]),
                    moves=int(options["moves"]),
                    waits_for=options["waiting-for"],
                    busy_with=options["busy-with"],
                    in_step_seconds=float(options["in-step"]),
                    slow_after_seconds=float(options["slow-after"]),
                    begun=tuple(map(int, options["begun"].split())),
                    waits_in=options["waits-in"],
                )
                self._membership.liveness.heartbeat(
                    member, int(options["incarnation"]), progress, job=options["job"], now=now
                )
                self._membership.outcome.stop.learnt(member.rank, int(options["knowing"]))
            case "stands":
                self._membership.outcome.stop.fix(int(parse_options(rest, {"after": ""})["after"]))
            case "finishes":
                self._finish(now, member, parse_options(rest, _FINISH), "")
            case "fails":
                self._finish(now, member, parse_options(rest[1:], _FINISH), rest[0])
            case "hears":
                heard = parse_options(rest, _MEMBER)
                self._membership.outcome.has_heard(member, int(heard["incarnation"]), job=heard["job"], now=now)
            case "is" if rest[:1] == ["told"]:
                self._membership.admission.told(member, int(parse_options(rest[1:], _MEMBER)["incarnation"]))
            case "vanishes":
                self._membership.outcome.lost(member, rest[0])
            case _:
                return self._recover(now, member, action, rest)
        return None

    def _recover(self, now: float, member: MemberId, action: str, rest: Sequence[str]) -> str | None:
        match action:
            case "asks":
                options = parse_options(rest, _MEMBER)
                admitted = self._membership.admission.admits(
                    member, int(options["incarnation"]), job=options["job"], now=now
                )
                return "may join" if admitted else "is to ask again"
            case "tells":
                told = parse_options(rest, {**_MEMBER, "hash": "", "after": "0"})
                self._membership.outcome.compare(
                    member, int(told["incarnation"]), int(told["after"]), told["hash"], job=told["job"]
                )
            case "withdraws":
                self._membership.admission.withdraw(member, int(parse_options(rest, _MEMBER)["incarnation"]))
            case "loses":
                self._finish(now, member, parse_options(rest[1:], _FINISH), rest[0], has_lost=True)
            case _:
                raise ValueError(f"unknown action {action!r}")
        return None

    def _join(self, now: float, member: MemberId, options: Mapping[str, str]) -> None:
        self._membership.admission.join(
            member,
            int(options["incarnation"]),
            job=options["job"],
            digest=options["settings"],
            now=now,
            address=options["address"],
            layout=layout_from_text(options["model"]) if member.role is Role.WORKER else None,
            settings=dict(item.split("=") for item in options["with"].split()),
            length=RunLength(*map(int, options["length"].split())) if options["length"] else None,
            generation=int(options["generation"]),
        )

    def _finish(
        self, now: float, member: MemberId, options: Mapping[str, str], failure: str, *, has_lost: bool = False
    ) -> None:
        begun = tuple(map(int, options["begun"].split()))
        told = Progress(step=int(options["step"] or 0), total_steps=int(options["of"]), begun=begun)
        self._membership.outcome.finish(
            member,
            int(options["incarnation"]),
            job=options["job"],
            now=now,
            progress=told if options["step"] or begun else None,
            exit_code=int(options["exit-code"]) if options["exit-code"] else None,
            parameters_sha256=options["parameters"],
            failure=failure,
            has_lost=has_lost,
            awaits_end=options["and"] == "waits",
        )


def layout_from_text(text: str) -> Layout | None:
    """`fc1:3x2 fc2:2` as a layout of one tensor per layer; `none` for a worker that brings none."""
    if text == "none":
        return None
    layers = [layer.split(":") for layer in text.split() if layer != "without-parameters"]
    return Layout(
        tuple(
            LayerSpec(name, (TensorSpec("weight", tuple(int(size) for size in shape.split("x"))),))
            for name, shape in layers
        )
    )


def describe_run(membership: Membership) -> str:
    missing = ", ".join(map(str, membership.roster.missing()))
    match membership.outcome.state:
        case RunState.WAITING:
            return f"waiting for {missing}"
        case RunState.FAILED | RunState.STOPPED | RunState.RECOVERING:
            return f"{membership.outcome.state.value}: {membership.outcome.reason}"
        case RunState.RUNNING | RunState.FINISHED:
            return str(membership.outcome.state.value)


def describe_stop(membership: Membership) -> str:
    stop = membership.outcome.stop
    last = "no last step yet" if stop.last_step is None else f"after step {stop.last_step}"
    return f"{stop.reason or 'nobody asked'}; {last}; worker 0 {'goes on' if stop.agreed else 'waits'}"


def describe_members(membership: Membership) -> str:
    lines = [describe_run(membership)]
    for member, record in membership.roster.members.items():
        finished = f", finished with parameters {record.parameters_sha256!r}" if record.finished else ""
        lines.append(
            f"  {member}: incarnation {record.incarnation}, seen at {record.last_seen_s:g}s, "
            f"step {record.progress.step}{finished}"
        )
    return "\n".join(lines)


@pytest.mark.parametrize("path", scenario_paths("membership"), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check_scenario(path, Interpreter())


def test_only_who_has_joined_passes_a_check() -> None:
    membership = make_membership(1, 1)
    server = MemberId(Role.SERVER, 0)
    with pytest.raises(StaleError, match="server 0 with incarnation 1 has not joined job 'demo'"):
        membership.roster.record(server, 1, job="demo")
    membership.admission.join(server, 1, job="demo", digest="", now=0.0)
    membership.roster.record(server, 1, job="demo")
    with pytest.raises(StaleError, match="incarnation 2 has not joined"):
        membership.roster.record(server, 2, job="demo")
    with pytest.raises(StaleError, match="belongs to job 'other'"):
        membership.roster.record(server, 1, job="other")


def test_who_is_lost_and_how_long_others_wait() -> None:
    membership = make_membership(1, 1)
    server, worker = MemberId(Role.SERVER, 0), MemberId(Role.WORKER, 0)
    assert membership.admission.waiting_s(7.0) == 0.0
    membership.admission.join(server, 1, job="demo", digest="", now=7.0)
    assert membership.admission.waiting_s(9.5) == 2.5
    membership.admission.join(worker, 1, job="demo", digest="", now=10.0, layout=layout_from_text("fc1:3x2"))
    assert membership.admission.waiting_s(20.0) == 0.0
    assert not membership.outcome.is_lost(worker)
    membership.outcome.lost(worker, "its connection broke")
    assert membership.outcome.is_lost(worker)
    assert not membership.outcome.is_lost(server)
