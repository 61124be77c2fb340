"""Faults done to a run from outside: signals to its processes, and words to those that listen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.chaos.acts import SIGNALS, send_signal
from taihu.core.chaos.faults import ANY, Fault
from taihu.core.chaos.memory import ChaosMemory
from taihu.core.job.run_folder import CHAOS
from taihu.core.system.clocks import monotonic, sleep
from taihu.local.finding import held, processes_of

_LOOK_S: Final = 0.05
_TAKEN_WITHIN_S: Final = 10.0


class Disturbance:
    """Does faults to the run in `folder`.

    Args:
        folder: of the run.
        logs: where its processes write their logs; those in `folder`, where none is given.
        wait: waits so many seconds.
        now: seconds.
    """

    def __init__(
        self,
        folder: Path,
        logs: Path | None = None,
        *,
        wait: Callable[[float], None] = sleep,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._folder = folder
        self._logs = logs or folder / "logs"
        self._memory = ChaosMemory(folder / CHAOS)
        self._wait = wait
        self._now = now

    def members(self) -> list[str]:
        """The members whose processes live now."""
        return list(processes_of(self._logs))

    def check(self, fault: Fault) -> None:
        """Raise where a fault can never happen to this run.

        Raises:
            ConfigError: it names a point or a step, or happens inside of processes that do not listen.
        """
        if fault.place is not None:
            raise ConfigError(f"{fault}: points and steps are known to the run alone; set them in its [chaos]")
        if fault.kind not in SIGNALS and not self._memory.has_begun:
            raise ConfigError(
                f"{fault.kind.value}: happens inside of a process, and none of {self._folder} listens; start the run "
                "with --set chaos.listens=true"
            )

    def do(self, fault: Fault) -> None:
        """Do a fault now; returns when it has begun.

        Raises:
            RunError: the member's process does not live, or does not answer.
        """
        if fault.member == ANY:
            raise ValueError("expected a member that was drawn")
        try:
            if fault.kind in SIGNALS:
                with held(fault.member, self._logs) as descriptor:
                    send_signal(descriptor, fault)
                return
            self._ask(fault)
        except OSError as error:
            raise RunError(f"{fault.member}: {error.strerror or error}; see `taihu status`") from None

    def _ask(self, fault: Fault) -> None:
        name, until_s = self._memory.ask(str(fault)), self._now() + _TAKEN_WITHIN_S
        while name not in self._memory.happened():
            if self._now() > until_s:
                raise RunError(f"{fault.member}: took no notice within {_TAKEN_WITHIN_S:g} s; it may be stopped")
            self._wait(_LOOK_S)
