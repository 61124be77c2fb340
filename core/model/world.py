"""The world of a run: who takes part, and who owns what."""

from __future__ import annotations

from dataclasses import dataclass

from taihu.core.base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run by role; ranks of each count from 0.

    A job has the first one; each plan brings that of its steps, and who takes part in a step asks its plan.

    Attributes:
        servers: how many there are; 0 where workers exchange with each other alone.
        workers: how many there are.

    Raises:
        ConfigError: there are none.
    """

    servers: int
    workers: int

    def __post_init__(self) -> None:
        if self.servers < 0 or self.workers < 1:
            raise ConfigError(f"a world of {self.servers} servers and {self.workers} workers: expected a worker")

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.servers + self.workers

    @property
    def owners(self) -> int:
        """The processes among which a layer is divided: the servers, or the workers where there are none."""
        return self.servers or self.workers

    @property
    def names(self) -> tuple[str, ...]:
        """`server 0` to `worker 0`, and so on."""
        return (
            *(f"server {rank}" for rank in range(self.servers)),
            *(f"worker {rank}" for rank in range(self.workers)),
        )
