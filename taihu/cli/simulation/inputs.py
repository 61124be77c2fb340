"""The inputs of `taihu simulate`: the layers of a job's model, what a worker computes for them, and the machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernels.sw26010.errors import BlockingError
from taihu.cli.planning.time import load_measured
from taihu.errors import ConfigError
from taihu.job import Job
from taihu.layout import Layout
from taihu.model_defaults import smallest_size
from taihu.names import built_in_data
from taihu.planner.profile import Profile
from taihu.simulation.compute import Compute, of_measured, of_modelled
from taihu.simulation.machine_file import machines_in, named_machines
from taihu.simulation.machines import Machines, Network, of_profile
from worker.data.load import load_dataset
from worker.engine import Model, build_model
from worker.engine.layer import Shape
from worker.sw26010 import modelled_step
from worker.training.objective import objective

__all__ = ["Work", "machines_of", "work_of"]


@dataclass(frozen=True)
class Work:
    """The layers of a model and the times of a worker; `profile` is where they are from, if they were measured."""

    layout: Layout
    compute: Compute
    profile: Profile | None = None


def work_of(job: Job, profile_file: Path | None) -> Work:
    """The work of a worker of `job`: as a run measured it, or on the SW26010, whose times are modelled.

    Raises:
        ConfigError: the file holds no profile, or neither model nor data can be found, or the processor has no model
            of a layer.
    """
    if profile_file is not None:
        profile, _ = load_measured(profile_file)
        return Work(profile.layout, of_measured(profile), profile)
    model, shape = _model_of(job)
    try:
        step = modelled_step(model, shape, job.train.batch, job.cluster.core_groups)
    except BlockingError as error:
        raise ConfigError(
            f"model {job.model.name} on an SW26010: {error}; give measured times by --profile"
        ) from None
    return Work(model.layout, of_modelled("sw26010", step.forward_seconds, step.backward_seconds))


def machines_of(network: str | None, work: Work, option: str = "--network") -> tuple[Network, Machines]:
    """The machines that `option` names; without it those of the run that the profile is from.

    Raises:
        ConfigError: there is neither, or the file is wrong.
    """
    if network is None:
        if work.profile is None:
            raise ConfigError(f"{option}: missing; give taihulight, ethernet:1gbit, a file, or a measured --profile")
        return of_profile(work.profile.link, work.profile.workers, work.profile.servers)
    named = named_machines(network, option)
    if named is not None:
        return named
    try:
        return machines_in(Path(network).read_text(), network)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(
            f"{option} {network}: {reason}; expected taihulight, ethernet:1gbit or a file of a network"
        ) from None


def _model_of(job: Job) -> tuple[Model, Shape]:
    """The model, not bound to memory, and the shape of an input; no data are made or read where that is known."""
    name, settings = job.model.name, job.data
    known = built_in_data(settings.name)
    if known is not None and known.shape:
        height, width, channels = known.shape
        height, width = settings.size or smallest_size(name, known.shape) or (height, width)
        shape = height, width, channels
        return build_model(name, shape, known.classes), shape
    data = load_dataset(settings, name)
    _, outputs = objective(job.train, data)
    return build_model(name, data.input_shape, outputs), data.input_shape
