"""Conversations of a client and a server, drawn step by step: the same on this machine and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
from hypothesis import given, settings
from hypothesis import strategies as st
from support.worlds import GUARD_S, SERVICE, World, real_world, simulated

Code = grpc.StatusCode

STEPS = ("ask", "answer", "half-close", "read", "initial", "trailing", "set code", "look", "call back", "large")
ENDS = ("end", "abort", "fail", "client cancels", "server cancels", "close the channel", "stop the server")
LARGE = 40_000


def outcome(act: Callable[[], Any]) -> Any:
    """The value of `act`, or what its error says."""
    try:
        value = act()
    except StopIteration:
        return "the end"
    except grpc.FutureCancelledError:
        return "cancelled"
    except grpc.RpcError as error:
        return told(error) if isinstance(error, grpc.Call) else "lost"
    except ValueError as error:
        return str(error)
    return [tuple(each) for each in value] if isinstance(value, tuple) else value


def told(call: Any) -> Any:
    trailing = [tuple(each) for each in call.trailing_metadata()]
    return call.code().name, call.details(), trailing


class Conversation:
    """One call of which each step is done by one side, and waited for."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.said: list[Any] = []
        self._asks: Any = world.queues.SimpleQueue()
        self._orders: Any = world.queues.SimpleQueue()
        self._done: Any = world.queues.SimpleQueue()
        self._ended = world.threads.Event()
        self._number = 0
        self._is_closed = False

    def run(self, steps: list[str], end: str) -> list[Any]:
        """All that both sides see."""
        handlers: dict[str, Any] = {"Talk": grpc.stream_stream_rpc_method_handler(self._answer)}
        with self.world.serving(handlers) as (server, port):
            channel = self.world.channel(port)
            call = channel.stream_stream(f"/{SERVICE}/Talk")(iter(self._asks.get, None))
            assert self._done.get(timeout=GUARD_S) == "begun"
            for step in steps:
                self._take(step, call)
            self._finish(end, call, channel, server)
            self._asks.put(None)
            channel.close()
            self._orders.put("end")
        return self.said

    def _answer(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        context.add_callback(self._ended.set)
        self._done.put("begun")
        while True:
            order = self._orders.get()
            if order == "read":
                self._done.put(outcome(lambda: next(requests)))
            elif order == "initial":
                self._done.put(outcome(lambda: context.send_initial_metadata((("first", "1"),))))
            elif order == "trailing":
                self._done.put(context.set_trailing_metadata((("last", "2"),)))
            elif order == "set code":
                self._done.put((context.set_code(Code.NOT_FOUND), context.set_details("nothing there")))
            elif order == "look":
                self._done.put((context.is_active(), context.code(), context.details()))
            elif order == "call back":
                self._done.put(context.add_callback(lambda: None))
            elif order == "server cancels":
                context.cancel()
                self._done.put(None)
            elif order == "abort":
                context.abort(Code.ABORTED, "enough")
            elif order == "fail":
                raise ValueError("broken")
            elif order == "end":
                return
            else:
                yield order

    def _order(self, order: Any) -> Any:
        self._orders.put(order)
        return self._done.get(timeout=GUARD_S)

    def _take(self, step: str, call: Any) -> None:
        self._number += 1
        message = b"%d" % self._number * (LARGE if step == "large" else 1)
        if step in ("ask", "large"):
            if not self._is_closed:
                self._asks.put(message)
                self.said.append((step, self._order("read") == message))
        elif step == "answer":
            self._orders.put(message)
            self.said.append((step, next(call)))
        elif step == "half-close":
            self._asks.put(None)
            self._is_closed = True
            self.said.append((step, self._order("read")))
        elif step != "read" or self._is_closed:
            self.said.append((step, self._order(step), call.is_active(), call.done(), call.running()))
            if step == "initial":  # it is there before anything else happens
                self.said.append(outcome(call.initial_metadata))

    def _finish(self, end: str, call: Any, channel: Any, server: Any) -> None:
        has_handler = end in ("client cancels", "server cancels", "close the channel", "stop the server")
        if has_handler:  # it may be about to go on behind its last answer
            self._order("look")
        if end == "client cancels":
            self.said.append(call.cancel())
        elif end == "close the channel":
            channel.close()
        elif end == "stop the server":
            server.stop(None)
        elif end == "server cancels":
            self._order(end)
        else:
            self._orders.put(end)
        self.said += [end, outcome(lambda: next(call)), told(call), outcome(call.initial_metadata)]
        self.said += [call.is_active(), call.done(), call.cancelled(), call.cancel()]
        if end not in ("client cancels", "close the channel"):  # which is known a moment before it is over
            self.said.append(call.add_callback(lambda: None))
        self.said += [outcome(call.result), outcome(lambda: call.exception() is call), outcome(lambda: next(call))]
        assert self._ended.wait(GUARD_S)
        if has_handler:
            self.said += [self._order("read"), self._order("look"), self._order("call back"), self._order("initial")]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(STEPS), max_size=12), st.sampled_from(ENDS), st.integers(0, 1000))
def test_both_sides_see_the_same(steps: list[str], end: str, seed: int) -> None:
    expected = Conversation(real_world()).run(steps, end)
    found: list[Any] = []
    simulated(lambda world: found.extend(Conversation(world).run(steps, end)), "greenlets", seed)
    assert found == expected
