"""Options of a worker's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taihu.core.chaos.points import Chaos, NoChaos
from taihu.core.coordination.listener import Listener, ListenOptions
from taihu.core.job.run_folder import RunFiles
from taihu.core.process.entry import Interrupts
from taihu.core.process.notices import Notices
from taihu.core.trace import Tracer
from taihu.core.wire.base.clock import WallClock
from taihu.core.wire.serving.server import RpcServer


@dataclass(frozen=True)
class WorkerOptions:
    """Options that differ between the workers of a job, and what SIGTERM and SIGINT lead to.

    `agent` is the life of that one which runs this process, 0 where none does.
    `listen` says where this process listens, `listener` is where peers reach a worker without servers, `health` where
    others may ask whether it lives; the page of metrics stays for `linger_s` after the end; `files` are those that
    worker 0 writes; `trace` is where this process's part of the trace is written at the end; `tell` gets the results,
    before the others may leave. After its first step the worker takes the first of the `interrupts` as a wish that
    the run ends in order. `chaos` is asked at each point; what is written for people has the time of `wall`;
    `notices` get what cannot be written.
    """

    rank: int
    agent: int = 0
    metrics_port: int | None = None
    linger_s: float = 0.0
    listen: ListenOptions = field(default_factory=ListenOptions)
    listener: Listener | None = None
    health: RpcServer | None = None
    files: RunFiles = field(default_factory=RunFiles)
    trace: Path | None = None
    tracer: Tracer = field(default_factory=Tracer.off)
    interrupts: Interrupts = field(default_factory=Interrupts)
    tell: Callable[[dict[str, Any]], None] = lambda _: None
    chaos: Chaos = field(default_factory=NoChaos)
    wall: WallClock = field(default_factory=WallClock)
    notices: Notices = field(default_factory=Notices)
