"""The modules that simulated code gets in place of gRPC and functions."""

from __future__ import annotations

from types import ModuleType
from typing import Final

import grpc

from taihu.core.system import sockets
from taihu.explore.network import socket_functions as functions
from taihu.explore.network.channel import insecure_channel
from taihu.explore.network.server import server
from taihu.explore.network.sockets import Socket
from taihu.explore.stand_ins.modules import like, not_simulated
from taihu.kernels import crc32c

__all__ = ["modules"]

_NOT_SIMULATED: Final = ("gethostbyaddr", "if_nameindex", "recv_fds", "send_fds", "socketpair")


def modules() -> dict[str, ModuleType]:
    """Stand-ins for the network, by the names of the modules whose places they take."""
    made = [
        like(grpc, insecure_channel=insecure_channel, server=server),
        like(
            sockets,
            Socket=Socket,
            **{name: vars(functions)[name] for name in functions.__all__},
            **dict.fromkeys(_NOT_SIMULATED, not_simulated),
        ),
        # Kernels that drive a ring by themselves need descriptors of the system's: sums take frames, as they do on a
        # machine without that instruction.
        like(crc32c, HAS_INSTRUCTION=False),
    ]
    return {module.__name__: module for module in made}
