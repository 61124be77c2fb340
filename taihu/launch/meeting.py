"""The place where the processes of a launch meet: rank 0's, which some launchers do not tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.wire.base.address import free_port, is_loopback, join_address
from taihu.launch.interfaces import own_interfaces
from taihu.launch.mpi import gather
from taihu.launch.place import Launch, choose_address, coordinator_at

USUAL_PORT: Final = 7070


@dataclass(frozen=True)
class Meeting:
    """The place of the run's coordinator: with rank 0."""

    host: str
    port: int

    @property
    def address(self) -> str:
        """`host:port`."""
        return join_address(self.host, self.port)

    def bind(self, *, first: bool) -> str:
        """The address on which a process listens: on one machine, only that machine reaches it."""
        everywhere = "::" if ":" in self.host else "0.0.0.0"  # noqa: S104
        return join_address(self.host if is_loopback(self.address) else everywhere, self.port if first else 0)


def find_meeting(given: str | None, launch: Launch, timeout_s: float) -> Meeting:
    """The place where the processes of `launch` meet; under `mpirun` all of them call this.

    Args:
        given: `HOST` or `HOST:PORT` of rank 0, which comes before what the launcher says.
        launch: of this process.
        timeout_s: how long the other ranks may take to answer.

    Raises:
        ConfigError: nobody says where rank 0 is.
    """
    host, port = coordinator_at(given, launch)
    if host is None and launch.launcher == "mpirun":
        records = gather({"interfaces": own_interfaces(), "port": free_port()}, timeout_s)
        host, port = choose_address([each["interfaces"] for each in records]), records[0]["port"]
    if host is None:
        raise ConfigError(
            f"{launch.launcher} does not say where rank 0 is; give --coordinator HOST:PORT of its host, or "
            "TAIHU_CLUSTER__COORDINATOR"
        )
    return Meeting(host, USUAL_PORT if port is None else port)
