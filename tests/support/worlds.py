"""Places where a test of gRPC, sockets or threads runs: this machine, or memory under a scheduler."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import grpc
import pytest

from taihu.core.system import clocks, pools, queues, sockets, threads
from taihu.explore.carriers import CARRIERS
from taihu.explore.network import Network, modules
from taihu.explore.orders import RandomOrder
from taihu.explore.scheduler import Scheduler
from taihu.explore.stand_ins.modules import source_modules
from taihu.explore.tasks import Process

__all__ = ["GUARD_S", "SERVICE", "World", "everywhere", "real_world", "simulated"]

GUARD_S: Final = 60.0
"""A wait that ends so late has failed."""
SERVICE: Final = "test.Service"
_SEEDS: Final = range(3)


@dataclass(frozen=True)
class World:
    """The modules of one world; tests take nothing else that waits or connects."""

    grpc: Any
    sockets: Any
    threads: Any
    queues: Any
    clocks: Any
    pools: Any

    @contextmanager
    def serving(
        self,
        handlers: Mapping[str, Any],
        *,
        threads: int = 4,
        options: Sequence[tuple[str, Any]] = (),
        interceptors: Sequence[Any] = (),
        port: int = 0,
        most_calls: int | None = None,
    ) -> Iterator[tuple[Any, int]]:
        """A server of `handlers` by their names, and its port."""
        pool = self.pools.ThreadPoolExecutor(threads)
        server = self.grpc.server(
            pool,
            interceptors=list(interceptors),
            options=(("grpc.so_reuseport", 0), *options),
            maximum_concurrent_rpcs=most_calls,
        )
        server.add_generic_rpc_handlers((self.grpc.method_handlers_generic_handler(SERVICE, dict(handlers)),))
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        has_failed = True
        try:
            yield server, port
            has_failed = False
        finally:
            server.stop(None)
            # Threads of a test that has failed may wait for ever.
            pool.shutdown(wait=not has_failed)

    def channel(self, port: int, options: Sequence[tuple[str, Any]] = ()) -> Any:
        """A channel to a server of this machine, whose tries follow each other quickly."""
        quick = (
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 5000),
            ("grpc.max_reconnect_backoff_ms", 200),
            ("grpc.use_local_subchannel_pool", 1),
        )
        return self.grpc.insecure_channel(f"127.0.0.1:{port}", options=(*quick, *options))

    def start(self, act: Callable[..., object], *args: Any) -> Any:
        """A thread that has begun."""
        thread = self.threads.Thread(target=act, args=args, daemon=True)
        thread.start()
        return thread

    def until(self, holds: Callable[[], bool], what: str = "it") -> None:
        """Wait until `holds`."""
        end_s = self.clocks.monotonic() + GUARD_S
        while not holds():
            assert self.clocks.monotonic() < end_s, f"{what} has not come about"
            self.clocks.sleep(0.001)


def real_world() -> World:
    """This machine's modules."""
    return World(grpc, sockets, threads, queues, clocks, pools)


def simulated_world() -> World:
    """The stand-ins, for use under a scheduler."""
    found: dict[str, ModuleType] = source_modules() | modules()
    return World(*(found[each.__name__] for each in (grpc, sockets, threads, queues, clocks, pools)))


def simulated(test: Callable[[World], None], carrier: str, seed: int = 1) -> Scheduler:
    """Run a test under a scheduler, to the end of all that it began or left behind."""
    scheduler = Scheduler(seed, CARRIERS[carrier](), RandomOrder(random.Random(seed), 0.5))
    # Deadlines of tests are short: no message is late. Signals interrupt nothing here either.
    scheduler.provide(Network(scheduler, late=0.0, interrupted=0.0))
    world = simulated_world()
    try:
        scheduler.run(lambda: test(world), Process("test"))
    finally:
        scheduler.close()
    return scheduler


def everywhere(test: Callable[[World], None]) -> Callable[[str], None]:
    """Run a test on this machine and in memory: it has to see the same."""

    @pytest.mark.parametrize("where", ["real", *CARRIERS])
    def run(where: str) -> None:
        if where == "real":
            test(real_world())
        else:
            for seed in _SEEDS:
                simulated(test, where, seed)

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run
