"""The one factory of channels, and the options that both ends share."""

from __future__ import annotations

import math
from typing import Final

import grpc

from taihu.core.security.security import Security
from taihu.core.wire.base.address import is_loopback
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES
from taihu.core.wire.serving.access import saying_token

_MAX_MESSAGE_BYTES = MAX_PAYLOAD_BYTES + (1 << 20)

_SHARED: Final = (
    # bytes: a frame and its header, or a plan with thousands of layers
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # bytes: one HTTP/2 DATA frame for a whole message instead of one for each 16 KiB
    ("grpc.http2.max_frame_size", 4 << 20),
    # a stream may be idle for long (evaluation), so pings are never too many
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


def shared_options(patience: Patience) -> tuple[tuple[str, int], ...]:
    """The options of both ends."""
    ping_ms = math.ceil(1000.0 * patience.ping_s)
    return (
        *_SHARED,
        # ms: a silent peer is noticed although TCP would wait for minutes
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", ping_ms),
        # ms: the same for its pings, which would wait for a minute
        ("grpc.http2.ping_timeout_ms", ping_ms),
    )


def open_channel(
    address: str, patience: Patience | None = None, security: Security | None = None, peer: str = ""
) -> grpc.Channel:
    """A channel to `host:port` with a connection of its own; connects on first use.

    With certificates, which are read now, the other side has to be `peer` of the same job: `server-0`, or whoever
    hosts the coordinator.

    Raises:
        ConfigError: a certificate is of no use, or the run's token would travel in plain text.
    """
    patience, security = patience or Patience(), security or Security()
    security.check_reach(address, is_local=is_loopback(address))
    answer_ms = math.ceil(1000.0 * patience.answer_s)
    options = (
        *shared_options(patience),
        # ms: one try to connect, and one to resolve a name, which would have 20 s and 120 s: behind a name there may
        # be the address of a host that is gone, and answers nothing
        ("grpc.min_reconnect_backoff_ms", answer_ms),
        ("grpc.dns_ares_query_timeout", answer_ms),
        # two channels to one address are two TCP connections
        ("grpc.use_local_subchannel_pool", 1),
        # ms: a server that is not there yet is tried again soon
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # ms: who is started again may have the same name and another address
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
        # names of the environment's proxy do not apply inside a cluster
        ("grpc.enable_http_proxy", 0),
    )
    if security.files is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        named = (*options, ("grpc.ssl_target_name_override", security.name_of(peer)))
        channel = grpc.secure_channel(address, security.files.channel_credentials(), options=named)
    return channel if security.token is None else saying_token(channel, security.token)
