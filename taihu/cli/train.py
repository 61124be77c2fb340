"""`taihu train`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from taihu.core.base.errors import ConfigError, WriteError
from taihu.core.base.words import counted, one_line
from taihu.core.job.flags import JobFlags, takes_options
from taihu.core.model.model_defaults import smallest_size
from taihu.core.model.names import built_in_data
from taihu.core.model.scores import score_lines
from taihu.core.process.entry import EXIT_INTERRUPTED, Interrupts
from taihu.core.process.options import (
    JobArgument,
    JsonOption,
    RunDirOption,
    SaveOption,
    TraceOption,
    TraceStepsOption,
    from_here,
    make_tracer,
)
from taihu.core.process.programs.preparation import importing_much
from taihu.core.process.results import check_folder_writable, check_writable, is_stdout, write_json
from taihu.core.process.streams import outlive_output
from taihu.core.traits.methods import METHODS
from taihu.local.display.display import Display, PlainDisplay, human_bytes, make_display

if TYPE_CHECKING:
    from taihu.core.checkpoint.places import Place
    from taihu.core.job import Job
    from taihu.core.settings import ClusterSettings


@takes_options
def train(
    job_file: JobArgument = None,
    *,
    flags: JobFlags,
    run_dir: RunDirOption = None,
    save: SaveOption = None,
    logs: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the daemons' logs here.")] = None,
    trace: TraceOption = None,
    trace_steps: TraceStepsOption = None,
    json_file: JsonOption = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="auto|RUN",
            help="Go on from a checkpoint: of this run, or the newest of all; the job is that run's.",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress: the summary, warnings and errors alone.")
    ] = False,
) -> int:
    """Train on this machine: start the server and worker daemons, show progress, end with a summary.

    Ctrl-C or SIGTERM stops the run after the next steps and saves the model; a second one ends it at once. A run that
    was stopped, or died, goes on with --resume, in a folder of its own.

    \b
    Examples:
      taihu train
      taihu train job.toml --workers 4 --json result.json
      taihu train --data fashion-mnist --epochs 5 --save model.safetensors
      taihu train --model resnet20 --data cifar10 --data-path DIR --steps 500
      taihu train --model my_model.py:build --data synthetic:3x32x32
      taihu train --data fashion-mnist --init-from model.safetensors
      taihu train --compression dlgs --density 0.01
      taihu train --exchange ring --workers 4
      taihu train --exchange ring --fc auto --set exchange.fc_scheme=slices
      taihu train --zero 3 --precision bf16 --set train.recompute=memory
      taihu train --compute sw26010 --trace trace.json
      taihu train --optimizer adam --lr 0.001
      taihu train --resume auto
      taihu train --resume runs/small_cnn-on-digits-20260728-120005 --epochs 20
      taihu train job.toml --resume s3://bucket/checkpoints
    """  # noqa: D301
    outlive_output()
    with importing_much():
        from taihu.core.checkpoint.places import setting_of
        from taihu.core.job.run_folder import RunFiles
        from taihu.local.resuming import check_folder, find_checkpoint
        from taihu.local.run import RUN_FOLDER, check_job, prepare
        from taihu.local.training import LocalTraining

    # All that can be known to be wrong is said before anything starts.
    files = {"dir": run_dir, "save": from_here(save), "results": from_here(json_file)}
    own: dict[str, Mapping[str, object]] = {"run": files}
    resumed = None if resume is None else find_checkpoint(resume, RUN_FOLDER.parent)
    if resumed is not None:
        job_file = job_file or resumed.settings
        if flags.init_from is not None:
            raise ConfigError("--resume: a run that goes on has its parameters; leave --init-from out")
        own["checkpoint"] = {"resume": setting_of(resumed.checkpoint.folder.absolute())}
        own["model"] = {"init_from": None, "init_skip": ()}
    job = flags.resolve(job_file, own)
    check_job(job, aside=True)
    check_folder(job)
    check_writable(json_file, save, trace)
    check_folder_writable(logs)
    make_tracer(trace, trace_steps)
    interrupts = Interrupts()
    run = prepare(LocalTraining(job, RunFiles(), logs, trace, trace_steps, interrupts, forks=True), job_file)
    # All settings of a run that goes on were given, so to say; what there is to say of them was said when it began.
    warnings = (
        run.warnings if resumed is None else tuple(f"{each}; using the one before" for each in resumed.problems)
    )
    for line in warnings:
        typer.echo(f"warning: {line}", err=True)
    interrupts.install()
    console = Console()
    with make_display(console, quiet=quiet) as display:
        display.say(opening(job))
        if resumed is not None:
            display.say(f"going on from   {_shown(resumed.checkpoint.folder)}")
        display.say("the first run compiles kernels, which takes a while")
        if run.files.folder is not None:
            display.say(f"run folder      {_shown(run.files.folder)}")
        results = run.run(display)
    if json_file is not None and is_stdout(json_file):
        write_json(json_file, results)
    # The bar has gone: these lines are the last ones.
    lines = PlainDisplay(console)
    summarise(lines, results, display.elapsed_s)
    for name, path in {"run folder": run.files.folder, "trace": trace}.items():
        if path is not None:
            lines.say(f"{name:<15} {_shown(path)}")
    if run.unwritten:
        raise WriteError("; ".join(run.unwritten))
    return EXIT_INTERRUPTED if results["stopped"] else 0


def _shown(path: Place) -> str:
    """The path, from the current folder if it lies in it; or the URL."""
    if not isinstance(path, Path):
        return str(path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def opening(job: Job) -> str:
    """The line that a run begins with."""
    workers = counted(job.world.workers, "worker")
    members = f"{counted(job.servers, 'server')}, {workers}" if job.servers else f"a ring of {workers}"
    local = f", {job.exchange.local_steps} local steps in a step" if job.updates_locally else ""
    modelled = f", planned for an {_chip(job.cluster)}" if job.models_compute else ""
    return (
        f"training {job.model.name} on {job.data.name}{_resized(job)}: {members}, "
        f"batch {job.train.batch} each{local}{modelled}"
    )


def _resized(job: Job) -> str:
    """The size that images of taihu's own are enlarged to for the model, in words; nothing where they are not."""
    data = built_in_data(job.data.name)
    size = None if data is None or job.data.size else smallest_size(job.model.name, data.shape)
    return "" if size is None else f" (images resized to {size[0]}x{size[1]}, the smallest that it takes)"


def summarise(display: Display, results: dict[str, Any], elapsed_s: float) -> None:
    """Show what a run led to; see `LocalTraining.run` for `results`."""
    step, compute, exchange, wait = (
        results[name]["median"] * 1e3
        for name in ("seconds_per_step", "seconds_compute", "seconds_exchange", "seconds_wait")
    )
    loss = "" if results["final_loss"] is None else f", final loss {results['final_loss']:.4f}"
    if results["stopped"]:
        step_of = f"step {results['steps']} of {results['total_steps']}"
        why = f": {results['stop_reason']}" if results["stop_reason"] else ""
        display.say(f"stopped after {step_of}, {elapsed_s:.1f} s{loss}{why}")
    else:
        local = f" of {results['local_steps']} local steps" if results["local_steps"] > 1 else ""
        display.say(f"done in {elapsed_s:.1f} s: {counted(results['steps'], 'step')}{local}{loss}")
    tested_step = results["evaluations"][-1]["step"] if results["evaluations"] else results["steps"]
    tested = "" if tested_step == results["steps"] else f" after step {tested_step}"
    for name, value in score_lines(results["test_metrics"] or {}):
        display.say(f"{name:<15} {value}{tested}")
    display.say(
        f"time per step   {step:.1f} ms: compute {compute:.1f}, wait {wait:.1f} (exchange took {exchange:.1f})"
    )
    if results["modelled"] is not None:
        display.say(_modelled(results["modelled"]))
    if results["predicted_seconds_per_step"]:
        predicted = results["predicted_seconds_per_step"] * 1e3
        compute = "" if results["modelled"] is None else " with the modelled compute"
        display.say(
            f"plan            {counted(results['groups'], 'group')}, {predicted:.1f} ms per step predicted{compute}"
        )
    sent, received = (human_bytes(results[f"bytes_{way}_per_step"]) for way in ("sent", "received"))
    display.say(f"bytes per step  {sent} sent, {received} received by all workers together")
    display.say(f"path            {results['path']}")
    for line in (*_of_staleness(results["staleness"]), *_of_compression(results)):
        display.say(line)
    if results["skipped_steps"]:
        display.say(
            f"skipped         {counted(results['skipped_steps'], 'step')} whose gradients did not fit into fp16"
        )
    if results["fc"] is not None:
        display.say(_sharded(results["fc"]))
    if results["parameters_sha256"]:
        display.say(f"{'sha256':<15} {results['parameters_sha256']}")
    if results["saved"]:
        display.say(f"saved           {_shown(Path(results['saved']))}")
    if results["not_saved"]:
        display.say(f"not saved       {results['not_saved']}")
    for note in results["data_notes"]:
        display.say(f"note            {one_line(note)}")


def _of_staleness(staleness: Mapping[str, Any] | None) -> Iterator[str]:
    """The staleness of a run whose steps did not wait for all workers, in words."""
    if staleness is None:
        return
    mean, most = staleness["mean_steps"], counted(staleness["most_steps"], "step")
    whole = staleness["entered"] + staleness["dropped"]
    dropped = f"; {staleness['dropped'] / max(1, whole):.1%} of frames came too late" if staleness["dropped"] else ""
    yield f"staleness       {mean:.2f} steps on average, {most} at most{dropped}"


def _of_compression(results: Mapping[str, Any]) -> Iterator[str]:
    """Lines about what compression has changed."""
    if results["chosen_compression"]:
        yield f"compression     {_chosen(results['chosen_compression'])}, as the run has chosen"
    if results["dropped_momentum"]:
        yield f"momentum        {results['dropped_momentum']}"


def _chosen(chosen: Mapping[str, Any]) -> str:
    """The compression of a run that chose it, in words."""
    method, types = METHODS[chosen["method"]], [chosen[key] for key in ("value_type", "downlink_value_type")]
    if not method.selects:
        return method.key
    share = "all values" if method.sends_all else f"{chosen['density']:g} of the gradient"
    return f"{method}, {share}, {types[0]} up and {types[1]} down"


def _modelled(modelled: dict[str, Any]) -> str:
    forward, backward = (modelled[f"{direction}_seconds"] * 1e3 for direction in ("forward", "backward"))
    pace = modelled["pace"]
    if pace is None:
        times = "the times above were measured here"
    else:
        times = f"steps took {pace:g} times as long"
        if modelled["late_seconds"] >= 0.1:
            times += f", and this machine was {modelled['late_seconds']:.1f} s behind: raise cluster.pace"
    again = modelled["recompute_seconds"] * 1e3
    computed = f", computed again {again:.1f} ms," if again else ""
    compute = f"forward {forward:.1f} ms, backward {backward:.1f} ms{computed} of compute per step on the SW26010"
    return f"modelled        {compute}; {times}"


def _chip(cluster: ClusterSettings) -> str:
    return f"SW26010 ({counted(cluster.core_groups, 'core group')})"


def _sharded(fc: dict[str, Any]) -> str:
    names = ", ".join(layer["name"] for layer in fc["layers"] if layer["choice"] == "shard")
    moved = human_bytes(fc["bytes_sent_per_step"])
    return f"sharded         {names}, by {fc['scheme']}: {moved} of activations sent by each worker and step"
