"""A run's status on the display: a fault of its coordinator is said, one that is only busy or gone is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO

import grpc
from rich.console import Console
from support.daemons import free_port

from taihu.core.coordination.coordinator.service import COORDINATOR_SERVICE
from taihu.core.wire.serving.server import RpcServer
from taihu.local.display.display import PlainDisplay
from taihu.local.display.watching import StatusWatch
from taihu.protos import coordinator_pb2 as pb


@contextmanager
def serving(answer: Callable[[bytes], bytes] | None) -> Iterator[str]:
    """The address of a server that gives this answer when it is asked for the status; without one, of another."""
    server = RpcServer.create(threads=2)
    address = f"127.0.0.1:{server.listen('127.0.0.1:0')}"
    if answer is not None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "GetStatus": grpc.unary_unary_rpc_method_handler(lambda request, _: answer(request))
        }
        server.grpc_server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(COORDINATOR_SERVICE, handlers),)
        )
    server.start(())
    yield address
    server.stop(0.0)


def said(address: str) -> list[str]:
    """The lines of three looks."""
    shown, seconds = StringIO(), iter([0.0, 10.0, 20.0, 30.0])
    watch = StatusWatch(address, PlainDisplay(Console(file=shown), lambda: next(seconds)))
    for _ in range(3):
        assert watch.show() is None
    return shown.getvalue().splitlines()


def test_a_server_that_is_no_coordinator_is_told_once() -> None:
    with serving(None) as address:
        (line,) = said(address)
    assert line == (
        f"warning: the run's progress cannot be shown: coordinator at {address}: UNIMPLEMENTED: Method not found!; "
        "what listens there is something else: check the address"
    )


def test_a_checkpoint_that_is_left_out_is_told_once_until_one_is_complete() -> None:
    problems = ["", "step 20: disk full", "step 40: disk full", "", "step 80: disk full"]
    answers = iter(problems)

    def answer(_: bytes) -> bytes:
        return pb.GetStatusResponse(
            state=pb.RUN_STATE_WAITING, servers=1, checkpoint_problem=next(answers)
        ).SerializeToString()

    shown = StringIO()
    with serving(answer) as address:
        watch = StatusWatch(address, PlainDisplay(Console(file=shown)))
        for _ in problems:
            watch.show()
    told = [line for line in shown.getvalue().splitlines() if line.startswith("warning")]
    assert told == [f"warning: step {step}: disk full; the run goes on without it" for step in (20, 80)]


def test_a_mistake_of_the_coordinator_is_told_once() -> None:
    def answer(_: bytes) -> bytes:
        raise ValueError("a mistake")

    with serving(answer) as address:
        (line,) = said(address)
    assert line.startswith(f"warning: the run's progress cannot be shown: coordinator at {address}: UNKNOWN: ")
    assert "a mistake" in line


def test_who_is_waited_for_is_shown() -> None:
    status = pb.GetStatusResponse(state=pb.RUN_STATE_WAITING, servers=1, workers=2).SerializeToString()
    with serving(lambda _: status) as address:
        lines = said(address)
    assert lines == [f"  {second:.1f} s  waiting for server 0 and workers 0, 1" for second in (10, 20, 30)]


def test_nothing_is_said_of_a_coordinator_that_has_ended() -> None:
    assert said(f"127.0.0.1:{free_port()}") == []
