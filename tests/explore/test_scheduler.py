"""The seeded scheduler: the same seed, the same order, on both carriers; virtual time; ends of processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.explore.carriers import CARRIERS
from taihu.explore.orders import Order, PriorityOrder, RandomOrder
from taihu.explore.scheduler import BEGUN_S, RUNNING, Scheduler, StandstillError
from taihu.explore.stand_ins import clocks
from taihu.explore.stand_ins.locks import Condition, Event, Lock
from taihu.explore.stand_ins.queues import Queue
from taihu.explore.stand_ins.threads import Thread
from taihu.explore.tasks import Process

ORDERS: dict[str, Callable[[Random], Order]] = {
    "random": lambda chance: RandomOrder(chance, 0.5),
    "priorities": lambda chance: PriorityOrder(chance, 3),
}


def run(main: Callable[[], object], *, seed: int = 7, carrier: str = "greenlets", order: str = "random") -> Scheduler:
    """Run `main` to its end; the scheduler, which is closed."""
    scheduler = Scheduler(seed, CARRIERS[carrier](), ORDERS[order](Random(seed)), longest_s=100.0)
    try:
        scheduler.run(main, Process("worker 0"))
    finally:
        scheduler.close()
    return scheduler


def together(*targets: Callable[[], object]) -> None:
    """Run targets as threads, and join them."""
    threads = [Thread(target=target, name=f"thread {place}") for place, target in enumerate(targets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


programs = st.lists(st.lists(st.sampled_from(["lock", "sleep", "put", "get"]), max_size=6), min_size=1, max_size=4)


@given(programs, st.integers(0, 2**20), st.sampled_from(sorted(ORDERS)))
def test_a_seed_is_one_order_on_both_carriers(programs: list[list[str]], seed: int, order: str) -> None:
    told: list[tuple[str, list[tuple[int, str, float]]]] = []
    for carrier in CARRIERS:
        seen: list[tuple[int, str, float]] = []

        def main(seen: list[tuple[int, str, float]] = seen) -> None:
            lock, queue = Lock(), Queue[int]()
            for _ in range(sum(program.count("get") for program in programs)):
                queue.put(1)

            def follow(place: int, program: list[str]) -> None:
                for act in program:
                    if act == "lock":
                        with lock:
                            clocks.sleep(0.25)
                    elif act == "sleep":
                        clocks.sleep(0.5)
                    elif act == "put":
                        queue.put(place)
                    else:
                        queue.get()
                    seen.append((place, act, RUNNING().now))

            together(*(lambda p=p, each=each: follow(p, each) for p, each in enumerate(programs)))

        told.append((run(main, seed=seed, carrier=carrier, order=order).digest, seen))
    assert told[0] == told[1]


def test_other_seeds_are_other_orders() -> None:
    def main() -> None:
        together(*([lambda: clocks.sleep(1.0)] * 4))

    assert len({run(main, seed=seed).digest for seed in range(20)}) > 5


def test_time_passes_only_where_nobody_goes_on() -> None:
    ends: dict[str, float] = {}

    def wait(name: str, seconds: float) -> None:
        clocks.sleep(seconds)
        ends[name] = RUNNING().now - BEGUN_S

    run(lambda: together(lambda: wait("long", 90.0), lambda: wait("short", 1.0)))
    assert ends == {"short": pytest.approx(1.0), "long": pytest.approx(90.0)}


@pytest.mark.parametrize("carrier", sorted(CARRIERS))
def test_a_standstill_says_who_waits_for_what(carrier: str) -> None:
    def main() -> None:
        first, second = Lock(), Lock()

        def take(one: Lock, other: Lock) -> None:
            with one:
                clocks.sleep(1.0)
                other.acquire()

        together(lambda: take(first, second), lambda: take(second, first))

    told = r"everybody waits: .*thread 0 waits for a lock; .*thread 1 waits for a lock"
    with pytest.raises(StandstillError, match=told):
        run(main, carrier=carrier)


def test_a_run_that_lasts_too_long_is_given_up() -> None:
    with pytest.raises(StandstillError, match=r"^101 virtual seconds have passed"):
        run(lambda: clocks.sleep(101.0))


@pytest.mark.parametrize("carrier", sorted(CARRIERS))
def test_a_killed_process_does_nothing_more(carrier: str) -> None:
    done: list[str] = []

    def main() -> None:
        scheduler, other = RUNNING(), Process("worker 1")

        def work() -> None:
            done.append("begun")
            clocks.sleep(1.0)
            done.append("gone on")

        scheduler.spawn(work, "main", other)
        clocks.sleep(0.5)
        scheduler.kill(other)
        clocks.sleep(2.0)
        assert scheduler.living(other)

    run(main, carrier=carrier)
    assert done == ["begun"]


def test_a_stopped_process_goes_on_where_it_was() -> None:
    done: list[float] = []

    def main() -> None:
        scheduler, other = RUNNING(), Process("worker 1")

        def work() -> None:
            clocks.sleep(1.0)
            done.append(scheduler.now - BEGUN_S)

        scheduler.spawn(work, "main", other)
        clocks.sleep(0.5)
        scheduler.stop(other)
        clocks.sleep(5.0)
        scheduler.resume(other)
        clocks.sleep(0.1)

    run(main)
    assert done == [pytest.approx(5.5, abs=1e-3)]


def test_a_signal_comes_in_the_middle_of_a_wait() -> None:
    def main() -> None:
        scheduler, event, heard = RUNNING(), Event(), []

        def wait() -> None:
            try:
                event.wait()
            except KeyboardInterrupt:
                heard.append(scheduler.now - BEGUN_S)

        task = scheduler.spawn(wait, "waiting")
        clocks.sleep(3.0)
        scheduler.interrupt(task, _raise)
        clocks.sleep(1.0)
        assert heard == [pytest.approx(3.0, abs=1e-3)]

    run(main)


def test_a_signal_in_a_wait_for_a_condition_comes_when_its_lock_is_held_again() -> None:
    """As C code takes it, which no handler breaks off: whoever leaves the block releases a lock that is its own."""

    def main() -> None:
        scheduler, changed, heard = RUNNING(), Condition(), []

        def wait() -> None:
            try:
                with changed:
                    changed.wait()
            except KeyboardInterrupt:
                heard.append(scheduler.now - BEGUN_S)

        task = scheduler.spawn(wait, "waiting")
        clocks.sleep(1.0)
        with changed:
            changed.notify_all()
            clocks.sleep(1.0)  # it waits for the lock
            scheduler.interrupt(task, _raise)
            clocks.sleep(1.0)
        clocks.sleep(1.0)
        assert heard == [pytest.approx(3.0, abs=1e-3)]
        assert not scheduler.failures

    run(main)


def _raise() -> None:
    raise KeyboardInterrupt


def test_clocks_may_run_at_another_speed() -> None:
    def main() -> None:
        scheduler, fast = RUNNING(), Process("worker 1")

        def wait() -> None:
            begun_s = clocks.monotonic()
            fast.run_clocks_at(2.0, scheduler.now)
            assert clocks.monotonic() - begun_s < 1e-3
            assert scheduler.seconds_until(scheduler.deadline(3.0) or 0.0) == pytest.approx(3.0)
            clocks.sleep(4.0)
            assert clocks.monotonic() - begun_s == pytest.approx(4.0, abs=1e-3)
            assert scheduler.now - BEGUN_S == pytest.approx(2.0, abs=1e-3)

        scheduler.spawn(wait, "main", fast)
        clocks.sleep(10.0)
        assert not scheduler.failures

    run(main)


@pytest.mark.parametrize("is_in_main", [True, False])
def test_a_ctrl_c_ends_the_run_and_not_the_task_that_it_meets(*, is_in_main: bool) -> None:
    """It arrives in the one thread that carries all tasks, whichever of them runs."""
    behind: list[str] = []

    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    def main() -> None:
        if is_in_main:
            interrupted()
        together(interrupted)
        behind.append("the run went on")

    with pytest.raises(KeyboardInterrupt):
        run(main)
    assert not behind


def test_a_ctrl_c_while_tasks_are_ended_is_not_lost() -> None:
    def interrupted() -> None:
        try:
            Event().wait()
        finally:
            signal.raise_signal(signal.SIGINT)

    def main() -> None:
        Thread(target=interrupted, daemon=True).start()
        clocks.sleep(1.0)

    with pytest.raises(KeyboardInterrupt):
        run(main)
