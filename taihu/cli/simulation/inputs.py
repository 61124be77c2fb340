"""The inputs of `taihu simulate`: the layers of a job's model, what a worker computes for them, and the machines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from taihu.cli.simulation.described import DescribedModel
from taihu.cli.simulation.measured import load_measured
from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.core.model.layout import Layout
from taihu.core.planner.profile import Profile
from taihu.kernels.sw26010.errors import BlockingError
from taihu.simulation.compute import Compute, Segments, of_measured, of_modelled
from taihu.simulation.machine_file import machines_in, named_machines
from taihu.simulation.machines import Machines, Network, of_profile
from taihu.worker.sw26010 import modelled_step


@dataclass(frozen=True)
class Work:
    """The layers of a model and the times of a worker.

    Attributes:
        layout: of the model.
        compute: of a step that computes nothing again.
        model: the job's, with the layers of `layout` unless another one was measured.
        profile: where the times are from, if they were measured.
    """

    layout: Layout
    compute: Compute
    model: DescribedModel
    profile: Profile | None = None

    @property
    def knows_model(self) -> bool:
        """Whether the job's model is the one whose times these are."""
        return self.profile is None or self.model.is_of(self.layout)

    def run_again(self, recompute: str, segments: int | None) -> Segments:
        """The segments whose forward is run again with these settings.

        Raises:
            ConfigError: another model was measured.
        """
        if recompute != "none" and self.profile is not None:
            self.model.check(self.layout, f"train.recompute = '{recompute}'")
        return self.model.run_again(recompute, segments)

    def compute_of(self, job: Job) -> Compute:
        """Compute as `job` has it, with what is computed again, and as many batches as its steps have."""
        again = self.run_again(job.train.recompute, job.train.recompute_segments)
        return replace(self.compute, run_again=again, local_steps=job.exchange.local_steps)


def work_of(job: Job, profile_file: Path | None) -> Work:
    """The work of a worker of `job`: as a run measured it, or on the SW26010, whose times are modelled.

    Raises:
        ConfigError: the file holds no profile, or neither model nor data can be found, or the processor has no model
            of a layer.
    """
    described = DescribedModel(job)
    if profile_file is not None:
        measured = load_measured(profile_file)
        profile, layout = measured.profile, measured.profile.layout
        without = Work(layout, of_measured(profile), described, profile)
        # A file that does not tell is taken to be of this job.
        again = without.run_again(*(measured.recompute or (job.train.recompute, job.train.recompute_segments)))
        return replace(without, compute=of_measured(profile, again))
    model = described.model
    try:
        step = modelled_step(model, model.input_shape, job.train.batch, job.cluster.core_groups)
    except BlockingError as error:
        raise ConfigError(
            f"model {job.model.name} on an SW26010: {error}; give measured times by --profile"
        ) from None
    step = step.longer(job.cluster.pace or 1.0)
    return Work(model.layout, of_modelled("sw26010", step.forward_seconds, step.backward_seconds), described)


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
