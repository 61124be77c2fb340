"""`taihu top`: a run as it goes on, the numbers of the dashboard in a terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from taihu.core.base.errors import PeerUnreachableError
from taihu.core.coordination.membership.members import RunState
from taihu.core.coordination.overview import COLUMNS, SLOW, MemberView, Overview, overview_of
from taihu.core.coordination.status import fetch_status
from taihu.core.job.environment import resolve_job
from taihu.core.job.security import security_of_onlooker
from taihu.core.process.entry import raise_on_terminate
from taihu.core.process.options import JobOption, SetOption
from taihu.core.process.results import check_writable, json_lines
from taihu.core.security.security import Security
from taihu.core.system.clocks import sleep
from taihu.core.wire.base.host_names import check_host
from taihu.local.display.display import human_bytes

_BAR = 30
_COLUMN = 13
_HISTORY = 60
_CHANGES = 3
_SPARKS = "▁▂▃▄▅▆▇█"


def top(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where server 0, in a ring worker 0, listens.")],
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Time between two looks.")] = 1.0,
    looks: Annotated[
        int | None, typer.Option("--looks", "-n", metavar="N", min=1, help="End after so many looks.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to try to reach it.")] = 5.0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE|-", help="Write every look as a line of JSON; - is standard output."),
    ] = None,
    job_file: JobOption = None,
    assignments: SetOption = None,
) -> None:
    """Show a run while it goes on: where its time goes, its traffic, loss, and who holds up whom.

    Ends with the run. On a terminal the picture is renewed in place; elsewhere every look is a row below one header.

    \b
    Examples:
      taihu top 10.0.0.1:7070
      taihu top 10.0.0.1:7070 --every 10 >> run.log
      taihu top 10.0.0.1:7070 -n 1 --json -
      taihu top 10.0.0.1:7070 --job job.toml                   # under TLS, with the certificate of observer-0
    """  # noqa: D301
    check_host(address)
    check_writable(json_file)
    raise_on_terminate()
    console = Console()
    losses: deque[float] = deque(maxlen=_HISTORY)
    security = security_of_onlooker(resolve_job(job_file, assignments or (), {}), "observer", address)
    view: Overview | None = _look(address, timeout, security)
    display = Live(console=console, auto_refresh=False) if console.is_terminal else _Lines(console)
    with display as shown, json_lines(json_file) as write:
        number = 0
        while view is not None:
            number += 1
            if view.step and view.total_steps:
                losses.append(view.loss)
            if isinstance(shown, Live):
                shown.update(render(view, losses), refresh=True)
            else:
                shown.show(view)
            write(view.to_json())
            if number == looks or view.state.is_final:
                return
            sleep(every)
            view = _look_again(address, timeout, security)
    console.print("the run has ended, its coordinator is gone", markup=False)


def _look(address: str, timeout_s: float, security: Security) -> Overview:
    return overview_of(fetch_status(address, timeout_s, security))


def _look_again(address: str, timeout_s: float, security: Security) -> Overview | None:
    """None when nobody answers any longer."""
    try:
        return _look(address, timeout_s, security)
    except PeerUnreachableError:
        return None


class _Lines:
    """The display where there is no terminal: a header, and a row for each look."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._widths: tuple[int, ...] = ()

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, view: Overview) -> None:
        """Show one row, and why the run failed."""
        if not self._widths:
            self._widths = tuple(max(_COLUMN, len(name)) for name in COLUMNS)
            self._print(COLUMNS)
        self._print(view.in_columns())
        if view.reason:
            self._console.print(view.reason, markup=False, highlight=False, soft_wrap=True)

    def _print(self, cells: Sequence[str]) -> None:
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, self._widths, strict=True))
        self._console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


def render(view: Overview, losses: deque[float]) -> RenderableType:
    """The whole picture; `losses` are those of the latest looks."""
    parts: list[RenderableType] = [_title(view)]
    if view.step:
        parts += [Text(), _step_bar(view), _numbers(view, losses)]
    if view.workers:
        parts += [Text(), _workers(view)]
    if view.servers:
        parts += [Text(), _servers(view)]
    if view.agents:
        parts += [Text(), _agents(view)]
    if view.changes:
        parts += [Text(), _changes(view)]
    return Group(*parts)


def _title(view: Overview) -> Text:
    colour = {RunState.FAILED: "red", RunState.STOPPED: "yellow", RunState.FINISHED: "green"}.get(view.state, "cyan")
    text = Text.assemble((view.job, "bold"), "  ", (view.state.value, colour))
    if view.step and not view.total_steps:
        text.append(f"  step {view.steps}")
    if view.total_steps:
        text.append(f"  step {view.steps}")
        done = view.step / view.total_steps
        text.append(f"  {'━' * round(_BAR * done)}", colour)
        text.append(f"{'━' * (_BAR - round(_BAR * done))} {done:.0%}", "dim")
    if view.reason:
        text.append(f"\n{view.reason}", "red")
    return text


_PARTS = (("compute", "green"), ("compress", "yellow"), ("exchange", "blue"), ("wait", "red"))


def _step_bar(view: Overview) -> Text:
    """The step as compute and wait, which are all of it, and what runs beside."""
    text = Text(f"step {view.step_seconds * 1e3:8.1f} ms  ")
    total = max(view.step_seconds, 1e-9)
    computing = min(_BAR, round(_BAR * view.compute_seconds / total))
    text.append("█" * computing, "green")
    text.append("█" * (_BAR - computing), "red")
    for name, colour in _PARTS:
        text.append(f"  {name} ", "dim")
        text.append(f"{getattr(view, f'{name}_seconds') * 1e3:.1f}", colour)
    return text


def _numbers(view: Overview, losses: deque[float]) -> Text:
    score = f"  test {'accuracy ' if view.test_accuracy >= 0 else ''}{view.score}" if view.score else ""
    samples = f"  {view.samples_per_second:.0f} samples/s" if view.total_steps else ""
    lines = [
        *([f"loss {view.loss:.4f}  {_sparkline(losses)}{score}"] if view.total_steps else []),
        f"up {human_bytes(view.sent_per_second)}/s  down {human_bytes(view.received_per_second)}/s{samples}",
        f"density {view.density:.3%}  threshold drift {view.drift:.1%}  skew of compute {view.skew:.2f}x",
    ]
    return Text("\n".join(lines))


def _sparkline(values: deque[float]) -> str:
    low, high = min(values, default=0.0), max(values, default=0.0)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] for value in values)


def _workers(view: Overview) -> Table:
    times = ("ms/step", "compute", "compress", "exchange", "wait")
    columns = ("worker", "step", *times, "loss", "up", "down", "heard of")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for member in view.workers:
        progress = member.progress
        milliseconds = (
            progress.step_seconds,
            progress.compute_seconds,
            progress.compress_seconds,
            progress.exchange_seconds,
            progress.wait_seconds,
        )
        style = "yellow" if member.is_slow else None
        table.add_row(
            str(member.rank),
            str(progress.step),
            *(f"{seconds * 1e3:.1f}" for seconds in milliseconds),
            f"{progress.loss:.4f}" if progress.total_steps else "-",
            human_bytes(progress.bytes_sent_per_step),
            human_bytes(progress.bytes_received_per_step),
            _heard_of(member),
            style=style,
        )
    return table


def _servers(view: Overview) -> Table:
    table = Table("server", "address", "ms/frame", "heard of", box=None, pad_edge=False, header_style="bold")
    for member in view.servers:
        update = f"{member.progress.update_seconds * 1e3:.2f}"
        table.add_row(str(member.rank), Text(member.address), update, _heard_of(member))
    return table


def _agents(view: Overview) -> Table:
    """The machines, those that are slow marked."""
    measured = [agent.work_seconds for agent in view.agents if agent.work_seconds]
    table = Table("agent", "workers", "ms/worker", "heard of", "", box=None, pad_edge=False, header_style="bold")
    for agent in view.agents:
        table.add_row(
            Text(agent.name),
            ", ".join(map(str, agent.ranks)) or "-",
            f"{agent.work_seconds * 1e3:.1f}" if agent.work_seconds else "-",
            f"{agent.seconds_since_call:.1f} s ago",
            "leaves" if agent.leaves else "" if agent.ranks else "stands by",
            style="yellow" if measured and agent.work_seconds > SLOW * median(measured) else None,
        )
    return table


def _changes(view: Overview) -> Text:
    """The last reasons for which members began again."""
    lines = [f"members have begun {view.generations} times"]
    lines += [f"  {change.reason}" for change in view.changes[-_CHANGES:]]
    return Text("\n".join(lines))


def _heard_of(member: MemberView) -> str:
    return "finished" if member.finished else f"{member.silent_seconds:.1f} s ago"
