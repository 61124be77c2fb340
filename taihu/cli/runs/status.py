"""`taihu status`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taihu.core.base.words import aligned
from taihu.core.coordination.client.awaited import awaited_in_words, missing_of
from taihu.core.coordination.control.looking import AgentStatus, RunStatus
from taihu.core.coordination.membership.members import MemberId, Role
from taihu.core.coordination.overview import member_as_json
from taihu.core.coordination.status import fetch_status
from taihu.core.job.environment import resolve_job
from taihu.core.job.security import security_of_onlooker
from taihu.core.process.options import JobOption, JsonOption, SetOption
from taihu.core.process.results import write_json
from taihu.core.wire.base.host_names import check_host


def status(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where server 0, in a ring worker 0, listens.")],
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to try.")] = 5.0,
    json_file: JsonOption = None,
    job_file: JobOption = None,
    assignments: SetOption = None,
) -> None:
    """Show the members of a running job and where each of them is.

    \b
    Examples:
      taihu status 10.0.0.1:7070
      taihu status 10.0.0.1:7070 --job job.toml                # under TLS, with the certificate of observer-0
    """  # noqa: D301
    check_host(address)
    security = security_of_onlooker(resolve_job(job_file, assignments or (), {}), "observer", address)
    answer = fetch_status(address, timeout, security)
    state = answer.state.value
    console = Console()
    console.print(f"job {answer.job}: {state}{' - ' + answer.reason if answer.reason else ''}", markup=False)
    missing = missing_of(answer)
    if missing and not answer.reason:
        since = f" since {answer.waiting_seconds:.0f} s" if answer.waiting_seconds else ""
        console.print(f"waiting for {awaited_in_words(missing)}{since}", markup=False, highlight=False)
    if console.is_terminal:
        console.print(_table(answer))
    else:
        for line in aligned([_COLUMNS, *_rows(answer)]):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    for agent in answer.agents:
        console.print(_of_agent(agent), markup=False, highlight=False, soft_wrap=True)
    for change in answer.changes:
        console.print(f"begun again: {change.reason}", markup=False, highlight=False, soft_wrap=True)
    if json_file is not None:
        write_json(json_file, _as_json(answer))


_COLUMNS = ("member", "address", "step", "loss", "ms/step", "path", "heard of", "state")


def _rows(answer: RunStatus) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for entry in answer.members:
        progress = entry.progress
        told = progress.total_steps > 0
        training = told or progress.step > 0
        steps = f"{progress.step}/{progress.total_steps}" if told else f"{progress.step}"
        rows.append(
            (
                str(entry.member),
                entry.address or "-",
                steps if training else "-",
                f"{progress.loss:.4f}" if told else "-",
                f"{progress.step_seconds * 1e3:.1f}" if training else "-",
                progress.path or "-",
                f"{entry.seconds_since_heartbeat:.1f} s ago",
                "finished" if entry.finished else "alive",
            )
        )
    return rows


def _of_agent(agent: AgentStatus) -> str:
    runs = (
        f"runs {awaited_in_words([MemberId(Role.WORKER, rank) for rank in agent.ranks])}"
        if agent.ranks
        else "stands by"
    )
    leaves = ", and leaves" if agent.leaves else ""
    return f"agent {agent.name} {runs}{leaves}; heard of {agent.seconds_since_call:.1f} s ago"


def _table(answer: RunStatus) -> Table:
    table = Table(*_COLUMNS)
    for row in _rows(answer):
        table.add_row(*map(Text, row))
    return table


def _as_json(answer: RunStatus) -> dict[str, object]:
    return {
        "job": answer.job,
        "state": answer.state.value,
        "reason": answer.reason,
        "servers": answer.servers,
        "workers": answer.workers,
        "missing": [{"role": member.role.value, "rank": member.rank} for member in missing_of(answer)],
        "agents": [
            {
                "name": agent.name,
                "workers": list(agent.ranks),
                "leaves": agent.leaves,
                "seconds_since_call": agent.seconds_since_call,
                "work_seconds": agent.work_seconds,
            }
            for agent in answer.agents
        ],
        "generations": answer.generations,
        "changes": [asdict(change) for change in answer.changes],
        "seconds_waiting": answer.waiting_seconds,
        "members": [
            {
                **member_as_json(entry.member, entry.address),
                "finished": entry.finished,
                "seconds_since_heartbeat": entry.seconds_since_heartbeat,
                **asdict(entry.progress),
            }
            for entry in answer.members
        ],
    }
