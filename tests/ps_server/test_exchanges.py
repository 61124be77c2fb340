"""The order of answers to a worker, and connections that nobody takes."""

from __future__ import annotations

import socket
from queue import SimpleQueue

import numpy as np
from support.daemons import wait_for
from support.frames import header_of
from support.shards import make_plan, shard_job

from taihu.core.trace import Tracer
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.frames.headers import FrameHeader
from taihu.core.wire.frames.identity import Sender, WorkerIdentity
from taihu.core.wire.frames.kinds import Encoding, Summed
from taihu.core.wire.links.connection import PlainConnection
from taihu.core.wire.links.inbox import Inbox, Origin, Sink
from taihu.core.wire.links.outbox import Outbox
from taihu.core.wire.links.pipe import PipeEvents
from taihu.core.wire.links.socket_pipe import SocketPipe
from taihu.core.wire.serving.metrics import ServerMetrics
from taihu.ps_server.exchanges import Exchanges, WorkerExchange
from taihu.ps_server.shard_holder import ShardHolder
from taihu.ps_server.updating import Answer

COUNT = 1 << 20


def header(offset: int, encoding: Encoding = Encoding.DENSE) -> FrameHeader:
    return header_of(0, 1, 1, 0, offset, COUNT, kind=Summed(), encoding=encoding)


def test_an_answer_without_values_overtakes_parameters() -> None:
    ours, theirs = socket.socketpair()
    exchange = WorkerExchange(
        WorkerIdentity("job", 0, 1),
        Origin("worker 0", Sender(1, 0), "server 0"),
        PlainConnection(ours),
        lend=np.empty,
        take=lambda _, frame: None,
        on_lost=lambda _, error: None,
    )
    values = np.zeros(COUNT, dtype=np.float32)
    exchange.answer(Answer(header(0), [values]))
    # Nobody reads, so the first one occupies the connection.
    wait_for(lambda: exchange.sent_directly, "nothing was sent")
    exchange.answer(Answer(header(1), [values]))
    exchange.answer(Answer(header(2, Encoding.NONE), []))
    came: SimpleQueue[int] = SimpleQueue()
    sink = Sink(
        (Summed,),
        places=lambda _: None,
        take=lambda header, values, in_place: came.put(header.address.offset),
        take_frame=lambda frame: came.put(frame.header.address.offset),
    )
    inbox = Inbox(Origin("server 0", Sender(0)), sink)
    receiver = SocketPipe(PlainConnection(theirs), Outbox("server 0"), inbox, PipeEvents(lambda error: None))
    try:
        assert [came.get(timeout=120) for _ in range(3)] == [0, 2, 1]
    finally:
        exchange.close()
        receiver.close()


def test_a_connection_that_comes_when_none_is_taken_any_more_is_closed() -> None:
    """Its worker said its token while the server ended: nobody would close it before the process ends."""
    exchanges = Exchanges(
        1,
        ShardHolder(shard_job({}), 0, 7, make_plan),
        ServerMetrics(0),
        on_lost=lambda rank, how: None,
        tracer=Tracer.off(),
        patience=Patience(),
    )
    early, late = socket.socketpair()
    exchanges.keep(WorkerIdentity("job", 0, 1), PlainConnection(early))
    exchanges.close_unused()
    exchanges.keep(WorkerIdentity("job", 0, 1), PlainConnection(late))
    assert (early.fileno(), late.fileno()) == (-1, -1)
