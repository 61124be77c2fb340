"""The `taihu` command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from typer.core import TyperGroup
from typer.main import get_install_completion_arguments

from taihu.cli.former import CommandGroup, Former, former_command, former_plan, former_simulate
from taihu.cli.lazy import LazyCommand
from taihu.core.process.command_line import CONTEXT_SETTINGS, version_option
from taihu.core.process.entry import run_app

# Name, function, and the first paragraph of its docstring. The first help page shows these.
_COMMANDS: Final = (
    (
        "train",
        "taihu.cli.train:train",
        "Train on this machine: start the server and worker daemons, show progress, end with a summary.",
    ),
    (
        "run",
        "taihu.cli.run:run_script",
        "Run a PyTorch script that uses taihu.torch in several processes on this machine.",
    ),
    (
        "launch",
        "taihu.cli.launch:launch",
        "Run a PyTorch script that uses taihu.torch on several hosts, which ssh reaches without a password.",
    ),
    (
        "example",
        "taihu.cli.example:example",
        "Write the files of an example into a folder, and tell how it is run; or list all examples.",
    ),
    (
        "runs",
        "taihu.cli.runs.runs:runs",
        "List the runs of a folder: when each began, whether it goes on or how it ended, its last step and scores.",
    ),
    ("status", "taihu.cli.runs.status:status", "Show the members of a running job and where each of them is."),
    (
        "top",
        "taihu.cli.runs.top:top",
        "Show a run while it goes on: where its time goes, its traffic, loss, and who holds up whom.",
    ),
    (
        "logs",
        "taihu.cli.runs.logs:logs",
        "Show what the processes of a run on this machine logged, in the order of time.",
    ),
    (
        "stop",
        "taihu.cli.runs.stop:stop",
        "Stop a run in good order: behind its next steps, with a model and, where it keeps them, a checkpoint.",
    ),
    (
        "report",
        "taihu.cli.runs.report:report",
        "Make one HTML page of a run: loss and accuracy, where its time went, what was exchanged, its processes.",
    ),
    (
        "predict",
        "taihu.cli.models.predict:predict",
        "Tell what a saved model says about samples in files: a line for each, likeliest classes first, or values.",
    ),
    (
        "doctor",
        "taihu.cli.doctor:doctor",
        "Tell whether a run would work here and between machines; each finding with its remedy.",
    ),
    (
        "manifest",
        "taihu.cli.manifest:manifest_command",
        "Write a job as Kubernetes objects: ConfigMaps, Service, volume, StatefulSet, Jobs or a JobSet, PodMonitor.",
    ),
)
_MORE: Final = (
    ("server", "taihu.ps_server.command:server", "Run one parameter server until its run has ended."),
    ("worker", "taihu.worker.command:worker", "Run one worker until its run has ended."),
    (
        "agent",
        "taihu.cli.agent:agent",
        "Run the workers that a run assigns to this machine, as agents come and go, until the run has ended.",
    ),
    (
        "scale",
        "taihu.cli.runs.scale:scale",
        "Have a PyTorch script that taihu run has started go on with another number of workers.",
    ),
    (
        "node",
        "taihu.cli.node:node",
        "Take one role of a run, a server's or a worker's, by the rank that mpirun, srun or torchrun gave.",
    ),
    (
        "job",
        "taihu.cli.job:job",
        "Show what a job file, the environment and --set lead to; or all keys, or what one of them means.",
    ),
    (
        "check-model",
        "taihu.cli.models.check_model:check_model",
        "Show the layers of a model, and check the gradients of each of them against central differences.",
    ),
    (
        "check-data",
        "taihu.cli.models.check_data:check_data",
        "Tell all defects of a data set at once, each kind with its number and the first rows or files.",
    ),
    ("evaluate", "taihu.cli.models.evaluate:evaluate_file", "Test a saved model on the test set of its data."),
    (
        "export",
        "taihu.cli.models.export:export",
        "Write a saved model for another library; both take raw inputs, as the data had them, channels last.",
    ),
    (
        "certs",
        "taihu.cli.certs:certs",
        "Make an authority for development, and a certificate for each process of a job.",
    ),
)
_PLANS: Final = (
    (
        "step",
        "taihu.cli.planning.command:step",
        "Predict the time of a step from a job's measured costs, and merge its layers so that it is shortest.",
    ),
    (
        "memory",
        "taihu.cli.planning.command:memory",
        "Tell what every process of a job takes, by kind of state, with activations; and whether so much is free.",
    ),
    (
        "search",
        "taihu.cli.planning.command:search",
        "Search for the fastest way to run a job on given machines, by simulation; --out writes its job file.",
    ),
)
_SIMULATIONS: Final = (
    (
        "run",
        "taihu.cli.simulation.command:run",
        "Simulate the steps of a job on other machines: how long one takes, and where its time and bytes go.",
    ),
    (
        "figure",
        "taihu.cli.simulation.command:figure",
        "Show a figure of a paper beside what the simulator says of it, by jobs and networks of its own.",
    ),
)
_DEVELOPMENT: Final = (
    (
        "explore",
        "taihu.cli.explore:explore_command",
        "Run the real daemons in a simulated world, with faults, and judge every run: the same seed, the same run.",
    ),
    (
        "chaos",
        "taihu.cli.chaos:chaos",
        "Have faults happen to a run on this machine: kill, stop or end its processes, from outside.",
    ),
    (
        "check-compressor",
        "taihu.cli.check_compressor:check_compressor",
        "Check what a method of compression promises: nothing lost, the same bits again, a run that goes on.",
    ),
    (
        "history",
        "taihu.cli.runs.history:history",
        "Check what all processes of a run recorded: nothing lost, nothing applied twice, updates in step order.",
    ),
    (
        "replay",
        "taihu.cli.runs.replay:replay",
        "Make a run of workers that did not wait for each other again, to the same bits, from what servers recorded.",
    ),
)
_BENCHES: Final = (
    (
        "exchange",
        "taihu.cli.bench.exchange:exchange",
        "Time the exchange of steps with a model's true layer shapes between real processes; nothing is computed.",
    ),
    (
        "allreduce",
        "taihu.cli.bench.allreduce:allreduce",
        "Time allreduce of fp32 buffers between real processes: all on this machine, or one rank per host.",
    ),
    (
        "fc",
        "taihu.cli.bench.fc:fc",
        "Time the communication of fully connected layers: gradients around a ring against activations of shards.",
    ),
    (
        "select",
        "taihu.cli.bench.select:select",
        "Time the selection of sparse gradients: with a reused threshold, with an exact one, and as torch.topk.",
    ),
    (
        "engine",
        "taihu.cli.bench.engine:engine",
        "Time whole training steps of models on this machine's processor, and the same in PyTorch.",
    ),
    (
        "sw26010",
        "taihu.cli.bench.sw26010:sw26010",
        "Model kernels on the SW26010 processor of the Sunway TaihuLight: nothing is timed here.",
    ),
)


_CHECKPOINTS: Final = (
    (
        "ls",
        "taihu.cli.runs.checkpoint:ls",
        "List the checkpoints of a run that a run can go on from: step, size, and who wrote them.",
    ),
    (
        "verify",
        "taihu.cli.runs.checkpoint:verify",
        "Read all files of checkpoints, and compare them with what their manifests say.",
    ),
    (
        "export",
        "taihu.cli.runs.checkpoint:export",
        "Write the model of a checkpoint, the newest that is whole, as `taihu train --save` does.",
    ),
    (
        "reshard",
        "taihu.cli.runs.checkpoint:reshard_checkpoint",
        "Write a checkpoint as another number of servers and workers would have.",
    ),
)


class _Commands(CommandGroup):
    """All commands; none runs beside a variable of ours that means nothing."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(former_command, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named, unless a variable of ours means nothing."""
        if any(name.startswith("TAIHU_") for name in os.environ):
            from taihu.core.job.variables import check_variables  # noqa: PLC0415 - costs the time to import all settings

            check_variables(os.environ)
        return super().invoke(ctx)


def make_app() -> TyperGroup:
    """All commands, none of which has been imported yet."""
    plan = _group(
        "plan", "Predict a step's time, the memory of a job, or the best way to run it.", _PLANS, former_plan
    )
    more = [
        *(LazyCommand(*command) for command in _MORE),
        _group("checkpoint", "Look after the checkpoints that a run can go on from.", _CHECKPOINTS),
        _group("simulate", "Run jobs on machines that are not there.", _SIMULATIONS, former_simulate),
        _group("dev", "Tools for whoever changes or studies taihu itself.", _DEVELOPMENT, members=[_bench()]),
    ]
    for command in more:
        command.hidden = True
    names = ", ".join(str(command.name) for command in more)
    return _Commands(
        name="taihu",
        help="Train neural networks on many ordinary machines over ordinary networks.",
        epilog=f"More commands, each with a help of its own: {names}.",
        no_args_is_help=True,
        commands=[*(LazyCommand(*command) for command in _COMMANDS), plan, *more],
        params=[version_option(), *get_install_completion_arguments()],
        context_settings=CONTEXT_SETTINGS,
    )


def _bench() -> TyperGroup:
    return _group("bench", "Measure parts of the system on real processes.", _BENCHES)


def _group(
    name: str,
    summary: str,
    commands: Sequence[tuple[str, str, str]],
    former: Former | None = None,
    members: Sequence[TyperGroup] = (),
) -> TyperGroup:
    return CommandGroup(
        former,
        name=name,
        help=summary,
        no_args_is_help=True,
        commands=[*(LazyCommand(*command) for command in commands), *members],
        params=[version_option()],
    )


def run() -> NoReturn:
    """Run the command line and exit."""
    run_app(make_app())
