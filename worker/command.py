"""The command `taihu worker`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taihu.core.base.errors import ConfigError, WriteError
from taihu.core.job.flags import JobFlags, takes_options
from taihu.core.process.entry import EXIT_INTERRUPTED, Interrupts
from taihu.core.process.options import DaemonOptions, RunDirOption, SaveOption, from_here, supervised_by
from taihu.core.process.programs.preparation import importing_much
from taihu.core.process.results import check_writable, write_json
from taihu.core.process.streams import outlive_output

if TYPE_CHECKING:
    from taihu.core.coordination.listener import Listener, ListenOptions
    from taihu.core.job import Job
    from taihu.core.wire.serving.server import RpcServer

_HEALTH_THREADS = 2
_GOES_ON = "the run goes on without it"


@takes_options
def worker(
    *,
    rank: Annotated[
        str | None, typer.Option("--rank", metavar="R|dns:NAME", help="Rank of this worker, from 0.")
    ] = None,
    run_dir: RunDirOption = None,
    save: SaveOption = None,
    process: DaemonOptions,
    agent: Annotated[int, typer.Option("--agent", hidden=True, help="The life of the agent that runs it.")] = 0,
    run_dir_is_made: Annotated[bool, typer.Option("--run-dir-is-made", hidden=True)] = False,
    flags: JobFlags,
) -> int:
    """Run one worker until its run has ended.

    On SIGTERM or Ctrl-C the run ends in order after the next steps, and worker 0 saves the model; a second one ends
    this process at once. All processes of a run that was stopped exit with 130. With --on-term leave, where the run
    keeps checkpoints, SIGTERM has it kept and this process end alone, with 130, too: the others wait for another one.

    \b
    Examples:
      taihu worker job.toml --rank 0 --coordinator 10.0.0.1:7070
      taihu worker job.toml --rank 0 --coordinator 10.0.0.1:7070 --compute sw26010      and the servers likewise
      RANK=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=7070 taihu worker job.toml
      torchrun-, MPI- and Slurm-style variables name rank and world size:
      RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=7070 taihu worker job.toml --exchange ring
      taihu worker job.toml --rank 0 --resume auto --set checkpoint.dir=/shared/checkpoints      begins, or goes on
    """  # noqa: D301
    interrupts = Interrupts()
    supervised_by(process.supervisor, interrupts, is_replaced=agent != 0)
    outlive_output()
    with importing_much():
        from taihu.core.checkpoint.keepers import recovers, tell_finished
        from taihu.core.coordination.discovery import find_coordinator, find_rank
        from taihu.core.coordination.listener import listen_options
        from taihu.core.job.chaos import chaos_of
        from taihu.core.job.run_folder import RunFiles, prepare_run
        from taihu.core.process.notices import Notices
        from taihu.core.wire.base.clock import WallClock
        from taihu.core.wire.base.log import configure_logs
        from taihu.worker.daemon import WorkerDaemon
        from taihu.worker.options import WorkerOptions
        from taihu.worker.preflight import check_trains

    own: dict[str, dict[str, object]] = {
        "cluster": {"coordinator": process.coordinator},
        "run": {"dir": run_dir, "save": from_here(save)},
        "checkpoint": {"resume": process.resume},
    }
    job = flags.resolve(process.job_file, own, launched=True)
    if tell_finished(job):
        return 0
    check_trains(job)
    check_writable(process.json_file, save, process.trace)
    interrupts.install(leaves=process.on_term == "leave" and recovers(job))
    interrupts.are_heard()
    job = find_coordinator(job)
    place = find_rank(rank, os.environ, "worker", job)
    if place is None:
        raise ConfigError("rank unknown: give --rank, or RANK in the environment")
    files = (
        prepare_run(job, process.job_file, made=run_dir_is_made, goes_on=recovers(job)) if place == 0 else RunFiles()
    )
    wall = WallClock()
    configure_logs(process.log_format, verbose=process.verbose, wall=wall, role="worker", rank=place)
    listen = listen_options(
        job, "worker", place, bind=process.bind, advertise=process.advertise, direct_port=process.direct_port
    )
    listener, health = _listening(job, place, listen)

    notices = Notices(are_read=process.supervisor is not None)

    def tell(results: dict[str, Any]) -> None:
        for path in files.results:
            try:
                write_json(path, results)
            except WriteError as error:
                notices.say(f"{error}; {_GOES_ON}")
        if process.json_file is not None and process.json_file not in files.results:
            write_json(process.json_file, results)

    options = WorkerOptions(
        rank=place,
        agent=agent,
        metrics_port=process.metrics_port,
        linger_s=process.linger,
        health=health,
        listen=listen,
        listener=listener,
        files=files,
        trace=process.trace,
        tracer=process.tracer(),
        interrupts=interrupts,
        tell=tell,
        chaos=chaos_of(job, f"worker {place}", wall),
        wall=wall,
        notices=notices,
    )
    results = WorkerDaemon(job, options).run()
    if results["not_saved"] and not results["stopped"] and process.supervisor is None:
        raise WriteError(f"the model was not saved: {results['not_saved']}")
    return EXIT_INTERRUPTED if results["stopped"] else 0


def _listening(job: Job, rank: int, options: ListenOptions) -> tuple[Listener | None, RpcServer | None]:
    """The listener for peers where workers meet; without one, the gRPC health server that `--bind` asks for."""
    from taihu.allreduce.rendezvous import listen_for_peers
    from taihu.core.wire.serving.server import RpcServer

    if job.workers_meet:
        listener = listen_for_peers(job, rank, options)
        typer.echo(f"listening on {listener.address}")
        return listener, None
    if not options.bind:
        return None, None
    health = RpcServer.create(
        threads=_HEALTH_THREADS, patience=job.patience, security=options.security, own_health=options.health
    )
    health.listen(options.bind)
    return None, health
