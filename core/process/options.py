"""Command-line options that several commands share, and the job they lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from taihu.core.base.errors import ConfigError
from taihu.core.process.entry import Interrupts
from taihu.core.process.supervised import end_with_supervisor, kill_self
from taihu.core.trace import Tracer


@dataclass(frozen=True)
class Sets:
    """The key of the job that an option sets; where that has no default of its own, `otherwise` says what holds.

    It stands beside the option in `Annotated`, see `taihu.core.job.flags`.
    """

    key: str
    otherwise: str = ""


JobArgument = Annotated[Path | None, typer.Argument(metavar="JOB.toml", help="Job file; without one, the demo job.")]
ServersOption = Annotated[
    int | None, Sets("cluster.servers"), typer.Option("--servers", metavar="S", min=1, help="Number of servers.")
]
WorkersOption = Annotated[
    int | None, Sets("cluster.workers"), typer.Option("--workers", metavar="N", min=1, help="Number of workers.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set any key of the job file; may be repeated."),
]
JobOption = Annotated[
    Path | None,
    typer.Option(
        "--job", metavar="JOB.toml", help="Job whose table security says how to reach it; see docs/security.md."
    ),
]
CoordinatorOption = Annotated[
    str | None,
    Sets("cluster.coordinator", "none"),
    typer.Option("--coordinator", metavar="HOST:PORT", help="Where server 0, in a ring worker 0, listens."),
]
BindOption = Annotated[
    str,
    typer.Option(
        "--bind", metavar="HOST:PORT", envvar="TAIHU_BIND", help="Where to listen; port 0 takes a free one."
    ),
]
DirectPortOption = Annotated[
    int,
    typer.Option(
        "--direct-port",
        metavar="PORT",
        min=0,
        max=65535,
        envvar="TAIHU_DIRECT_PORT",
        help="Port of connections beside gRPC, on the host of --bind; 0 takes a free one when one is wanted.",
    ),
]
AdvertiseOption = Annotated[
    str,
    typer.Option(
        "--advertise", metavar="HOST", envvar="TAIHU_ADVERTISE", help="The host that workers are told to connect to."
    ),
]
MetricsPortOption = Annotated[
    int,
    typer.Option("--metrics-port", envvar="TAIHU_METRICS_PORT", help="Port of /metrics; 0 takes a free one, logged."),
]
LingerOption = Annotated[
    float,
    typer.Option(
        "--linger",
        metavar="SECONDS",
        min=0,
        envvar="TAIHU_LINGER",
        help="Serve /metrics for so long after the end, for a last scrape.",
    ),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE|-", help="Write the results as JSON; - is standard output.")
]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to write it.")]
OwnModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="FILE:FUNCTION",
        help="What builds the model, for one with layers of your own: this file is executed, the model's is not.",
    ),
]
RunDirOption = Annotated[
    Path | None,
    Sets("run.dir", "runs/NAME-TIME with taihu train and run, else none"),
    typer.Option(
        "--run-dir",
        metavar="DIR|none",
        help="A new folder for settings, results, steps, model; {name} and {time} in it are filled in.",
    ),
]
SaveOption = Annotated[
    Path | None,
    Sets("run.save", "model.safetensors in the run folder, if there is one"),
    typer.Option("--save", metavar="FILE.safetensors|none", help="Where worker 0 saves the model at the end."),
]
ResumeOption = Annotated[
    str | None,
    Sets("checkpoint.resume", "none"),
    typer.Option(
        "--resume",
        metavar="auto|CHECKPOINT",
        help="Go on from a checkpoint, a folder step-N; auto: the newest in checkpoint.dir, or the beginning where "
        "none is there. The same for all processes.",
    ),
]
OnTermOption = Annotated[
    Literal["stop", "leave"],
    typer.Option(
        "--on-term",
        metavar="stop|leave",
        envvar="TAIHU_ON_TERM",
        help="What SIGTERM asks for: that the run stops or, where it keeps checkpoints, waits for another process in "
        "the place of this one.",
    ),
]
LogFormatOption = Annotated[
    Literal["auto", "text", "json"],
    typer.Option("--log-format", metavar="auto|text|json", help="Form of the log lines on stderr."),
]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Record what happened when, for ui.perfetto.dev.")
]
TraceStepsOption = Annotated[
    str | None, typer.Option("--trace-steps", metavar="FIRST-LAST", help="Record these steps only, e.g. 20-40.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log every step.")]
SupervisorOption = Annotated[
    int | None,
    typer.Option("--supervisor", hidden=True, help="End with this process, which started it, or when stdin closes."),
]


@dataclass(frozen=True, kw_only=True)
class DaemonOptions:
    """Options of a server's and of a worker's process alike."""

    job_file: JobArgument = None
    coordinator: CoordinatorOption = None
    bind: BindOption = ""
    advertise: AdvertiseOption = ""
    direct_port: DirectPortOption = 0
    resume: ResumeOption = None
    metrics_port: MetricsPortOption = 0
    linger: LingerOption = 0.0
    json_file: JsonOption = None
    trace: TraceOption = None
    trace_steps: TraceStepsOption = None
    on_term: OnTermOption = "stop"
    log_format: LogFormatOption = "auto"
    verbose: VerboseOption = False
    supervisor: SupervisorOption = None

    def tracer(self) -> Tracer:
        """The tracer that `--trace` and `--trace-steps` ask for; raises ConfigError as `make_tracer`."""
        return make_tracer(self.trace, self.trace_steps)


def from_here(path: Path | None) -> Path | None:
    """A file that a flag names, in the current folder if it is relative; `none` stays, `-` is no file."""
    if path is None or str(path) == "-":
        return None
    return path if str(path) == "none" else path.absolute()


def make_tracer(path: Path | None, steps: str | None) -> Tracer:
    """The tracer that `--trace` and `--trace-steps` ask for.

    Raises:
        ConfigError: `steps` is no range, or without a trace.
    """
    if path is None and steps is not None:
        raise ConfigError(f"--trace-steps {steps}: of which trace? give --trace FILE as well")
    if path is None:
        return Tracer.off()
    if steps is None:
        return Tracer()
    first, dash, last = steps.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        raise ConfigError(f"--trace-steps {steps}: expected FIRST-LAST, for example 20-40")
    return Tracer(first_step=int(first), last_step=int(last))


def refuse(options: Mapping[str, object], why: str) -> None:
    """Raise ConfigError with `why` for the first of these options that was given: neither None nor False."""
    if name := next((name for name, value in options.items() if value not in (None, False)), None):
        raise ConfigError(f"{name}: {why}")


def supervised_by(pid: int | None, interrupts: Interrupts, *, is_replaced: bool = False) -> None:
    """Interrupt this process as soon as the one that started it, if that is to be so, has ended.

    One that `is_replaced` on another machine then is killed: whatever it said to others would be the end of the run.
    """
    if pid is not None:
        end_with_supervisor(pid, kill_self if is_replaced else interrupts.end_at_once)
