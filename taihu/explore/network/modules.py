"""The modules that simulated code gets in place of gRPC and functions."""

from __future__ import annotations

import socket
from types import ModuleType

import grpc

from taihu.explore.network import socket_functions as functions
from taihu.explore.network.channel import insecure_channel
from taihu.explore.network.server import server
from taihu.explore.network.sockets import Socket
from taihu.explore.stand_ins.modules import like
from taihu.kernels import crc32c

__all__ = ["modules"]


def modules() -> dict[str, ModuleType]:
    """Stand-ins for the network, by the names of the modules whose places they take."""
    made = [
        like(grpc, insecure_channel=insecure_channel, server=server),
        like(
            socket,
            socket=Socket,
            create_server=functions.create_server,
            create_connection=functions.create_connection,
            getaddrinfo=functions.getaddrinfo,
            gethostname=functions.gethostname,
            has_dualstack_ipv6=functions.has_dualstack_ipv6,
            # Numbers in place of members of an enum, whose arithmetic takes longer than a call of the kernel's.
            MSG_PEEK=int(socket.MSG_PEEK),
            MSG_WAITALL=int(socket.MSG_WAITALL),
            MSG_DONTWAIT=int(socket.MSG_DONTWAIT),
        ),
        # Kernels that drive a ring by themselves need descriptors of the system's: sums take frames, as they do on a
        # machine without that instruction.
        like(crc32c, HAS_INSTRUCTION=False),
    ]
    return {module.__name__: module for module in made}
