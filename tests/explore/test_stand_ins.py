"""Stand-ins for threads, locks, queues and pools: the same as Python's own."""

from __future__ import annotations

import concurrent.futures
import queue
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worlds import GUARD_S, World, everywhere, real_world, simulated

SOON_S = 0.02
_OTHERS = (queue.Empty, queue.Full, concurrent.futures.CancelledError)


def outcome(act: Callable[[], Any]) -> Any:
    """The value of `act`, or the kind of its error and its words."""
    try:
        return act()
    except (ValueError, RuntimeError, TimeoutError, *_OTHERS) as error:
        return type(error), str(error)


# -- threads


@everywhere
def test_a_thread_runs_once_and_is_waited_for(world: World) -> None:
    may, seen = world.threads.Event(), []

    def work(first: int, *, second: int) -> None:
        assert may.wait(GUARD_S)
        seen.append((first, second, world.threads.current_thread().name))

    thread = world.threads.Thread(target=work, name="worker", args=(1,), kwargs={"second": 2}, daemon=True)
    assert (thread.ident, thread.is_alive(), thread.daemon) == (None, False, True)
    assert outcome(thread.join) == (RuntimeError, "cannot join thread before it is started")
    thread.start()
    assert thread.is_alive()
    assert isinstance(thread.ident, int)
    assert outcome(thread.start) == (RuntimeError, "threads can only be started once")
    thread.join(SOON_S)
    assert thread.is_alive()
    may.set()
    thread.join(GUARD_S)
    thread.join()
    assert not thread.is_alive()
    assert seen == [(1, 2, "worker")]


@everywhere
def test_a_thread_is_the_one_that_it_finds_itself_to_be(world: World) -> None:
    seen: list[Any] = []

    def work() -> None:
        seen.append(world.threads.current_thread())
        seen.append(outcome(world.threads.current_thread().join))

    thread = world.threads.Thread(target=work)
    thread.start()
    thread.join()
    assert seen[0] is thread
    assert seen[1] == (RuntimeError, "cannot join current thread")
    me = world.threads.current_thread()
    assert me is world.threads.current_thread()
    assert me is world.threads.main_thread()
    assert me.is_alive()
    assert me.ident != thread.ident


@everywhere
def test_a_daemon_is_made_or_started_with_its_name_and_what_it_is_given(world: World) -> None:
    seen: list[Any] = []

    def work(*given: int) -> None:
        seen.append((world.threads.current_thread().name, given))

    later = world.threads.make_thread("later", work)
    assert (later.daemon, later.is_alive()) == (True, False)
    now = world.threads.spawn("now", work, 1, 2)
    now.join(GUARD_S)
    assert (now.daemon, seen) == (True, [("now", (1, 2))])
    later.start()
    later.join(GUARD_S)
    assert seen[1:] == [("later", ())]


@everywhere
def test_a_class_of_threads(world: World) -> None:
    base: Any = world.threads.Thread

    class Counting(base):  # type: ignore[misc]  # of the world's
        def run(self) -> None:
            self.count = 1 + self.started_with

        def __init__(self, started_with: int) -> None:
            super().__init__(daemon=True)
            self.started_with = started_with

    counting = Counting(3)
    counting.start()
    counting.join()
    assert counting.count == 4


@everywhere
def test_threads_get_their_daemon_flag_from_who_starts_them(world: World) -> None:
    seen: list[bool] = []

    def work() -> None:
        seen.append(world.threads.Thread().daemon)

    for daemon in (True, False):
        thread = world.threads.Thread(target=work, daemon=daemon)
        thread.start()
        thread.join()
    assert seen == [True, False]


@everywhere
def test_a_timer_calls_once_unless_it_is_cancelled(world: World) -> None:
    seen: Any = world.queues.SimpleQueue()
    timer = world.threads.Timer(SOON_S, lambda *args, **named: seen.put((args, named)), (1,), {"two": 2})
    begun_s = world.clocks.monotonic()
    timer.start()
    assert timer.is_alive()
    assert seen.get(timeout=GUARD_S) == ((1,), {"two": 2})
    assert world.clocks.monotonic() - begun_s >= SOON_S
    timer.join(GUARD_S)
    assert timer.finished.is_set()
    cancelled = world.threads.Timer(SOON_S, seen.put, (3,))
    cancelled.start()
    cancelled.cancel()
    cancelled.join(GUARD_S)
    world.clocks.sleep(2 * SOON_S)
    assert not cancelled.is_alive()
    assert seen.empty()


# -- locks


@everywhere
def test_a_lock_is_held_by_one(world: World) -> None:
    lock = world.threads.Lock()
    assert outcome(lock.release) == (RuntimeError, "release unlocked lock")
    assert lock.acquire()
    assert lock.locked()
    assert lock.acquire(blocking=False) is False
    assert lock.acquire(timeout=SOON_S) is False
    assert outcome(lambda: lock.acquire(False, 1.0)) == (
        ValueError,
        "can't specify a timeout for a non-blocking call",
    )
    assert outcome(lambda: lock.acquire(True, -2))[0] is ValueError
    freeing = world.start(lambda: (world.clocks.sleep(SOON_S), lock.release()))
    assert lock.acquire(timeout=GUARD_S)
    freeing.join(GUARD_S)
    lock.release()
    with lock as got:
        assert got is True
    assert not lock.locked()


@everywhere
def test_a_lock_keeps_others_out(world: World) -> None:
    lock, inside, most = world.threads.Lock(), [0], [0]

    def work() -> None:
        for _ in range(20):
            with lock:
                inside[0] += 1
                most.append(inside[0])
                world.clocks.sleep(0.0)
                inside[0] -= 1

    threads = [world.start(work) for _ in range(4)]
    for each in threads:
        each.join(GUARD_S)
    assert (max(most), len(most)) == (1, 81)


@everywhere
def test_an_rlock_is_held_more_than_once_by_one(world: World) -> None:
    lock = world.threads.RLock()
    assert outcome(lock.release) == (RuntimeError, "cannot release un-acquired lock")
    assert lock.acquire()
    assert lock.acquire(blocking=False)
    seen: list[Any] = []

    def work() -> None:
        seen.append(lock.acquire(blocking=False))
        seen.append(outcome(lock.release))
        seen.append(lock.acquire(timeout=GUARD_S))
        lock.release()

    other = world.start(work)
    world.until(lambda: len(seen) == 2)
    lock.release()
    world.clocks.sleep(SOON_S)
    assert seen == [False, (RuntimeError, "cannot release un-acquired lock")]
    lock.release()
    other.join(GUARD_S)
    assert seen[2] is True


@everywhere
def test_a_condition_is_used_with_its_lock_alone(world: World) -> None:
    for lock in (None, world.threads.Lock(), world.threads.RLock()):
        condition = world.threads.Condition(lock)
        assert outcome(condition.wait) == (RuntimeError, "cannot wait on un-acquired lock")
        assert outcome(condition.notify) == (RuntimeError, "cannot notify on un-acquired lock")
        assert outcome(condition.notify_all) == (RuntimeError, "cannot notify on un-acquired lock")
        with condition:
            assert condition.wait(SOON_S) is False
            assert condition.wait(0) is False
            assert condition.wait_for(lambda: 5) == 5
            assert condition.wait_for(lambda: 0, SOON_S) == 0
            condition.notify()


@everywhere
def test_a_condition_wakes_as_many_as_it_is_told(world: World) -> None:
    condition, waiting, woken = world.threads.Condition(), [0], []

    def work(number: int) -> None:
        with condition:
            waiting[0] += 1
            assert condition.wait(GUARD_S)
            woken.append(number)

    threads = []
    for number in range(5):
        threads.append(world.start(work, number))
        world.until(lambda: waiting[0] == len(threads))
    for count, expected in ((1, 1), (2, 3)):
        with condition:
            condition.notify(count)
        world.until(lambda: len(woken) == expected)  # noqa: B023 - at once
        world.clocks.sleep(SOON_S)
        assert sorted(woken) == list(range(expected))
    with condition:
        condition.notify_all()
    for each in threads:
        each.join(GUARD_S)
    assert sorted(woken) == list(range(5))


@everywhere
def test_waiting_gives_a_lock_that_is_held_twice_back_as_it_was(world: World) -> None:
    condition, came = world.threads.Condition(), []

    def work() -> None:
        with condition:
            came.append(1)
            condition.notify_all()

    with condition, condition:
        other = world.start(work)
        assert condition.wait_for(lambda: came, GUARD_S)
        assert condition.acquire()
        for _ in range(3):
            condition.release()
        assert outcome(condition.release) == (RuntimeError, "cannot release un-acquired lock")
        condition.acquire()
        condition.acquire()
    other.join(GUARD_S)


@everywhere
def test_an_event_wakes_all(world: World) -> None:
    event, seen = world.threads.Event(), []
    assert event.wait(SOON_S) is False
    threads = [world.start(lambda: seen.append(event.wait(GUARD_S))) for _ in range(3)]
    event.set()
    for each in threads:
        each.join(GUARD_S)
    assert seen == [True, True, True]
    assert event.is_set()
    assert event.wait(0)
    event.clear()
    assert not event.is_set()


@everywhere
def test_semaphores_count(world: World) -> None:
    semaphore = world.threads.Semaphore(2)
    assert semaphore.acquire()
    assert semaphore.acquire(blocking=False)
    assert semaphore.acquire(blocking=False) is False
    assert semaphore.acquire(timeout=SOON_S) is False
    freeing = world.start(lambda: (world.clocks.sleep(SOON_S), semaphore.release(2)))
    assert semaphore.acquire(timeout=GUARD_S)
    freeing.join(GUARD_S)
    with semaphore:
        assert semaphore.acquire(blocking=False) is False
    assert outcome(lambda: semaphore.release(0)) == (ValueError, "n must be one or more")
    assert outcome(lambda: world.threads.Semaphore(-1)) == (ValueError, "semaphore initial value must be >= 0")
    assert outcome(lambda: semaphore.acquire(False, 1.0)) == (
        ValueError,
        "can't specify timeout for non-blocking acquire",
    )
    bounded = world.threads.BoundedSemaphore(1)
    assert outcome(bounded.release) == (ValueError, "Semaphore released too many times")
    assert bounded.acquire()
    bounded.release()


# -- queues


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers()), st.just(("get", 0)), st.just(("empty", 0)), st.just(("qsize", 0))
    ),
    max_size=40,
)


@given(operations, st.integers(0, 4))
def test_queues_by_one_thread(steps: list[tuple[str, int]], most: int) -> None:
    def results(world: World, kind: str) -> list[Any]:
        items = world.queues.Queue(most) if kind == "Queue" else world.queues.SimpleQueue()
        acts: dict[str, Callable[[int], Any]] = {
            "put": lambda value: outcome(lambda: items.put(value, block=False)),
            "get": lambda _: outcome(lambda: items.get(block=False)),
            "empty": lambda _: items.empty(),
            "qsize": lambda _: items.qsize(),
        }
        return [acts[name](value) for name, value in steps]

    for kind in ("Queue", "SimpleQueue"):
        expected = results(real_world(), kind)
        found: list[Any] = []
        simulated(lambda world: found.extend(results(world, kind)), "greenlets")  # noqa: B023 - at once
        assert found == expected


@everywhere
def test_a_queue_waits_for_items_and_for_room(world: World) -> None:
    items = world.queues.Queue(2)
    assert outcome(lambda: items.get(timeout=SOON_S)) == (queue.Empty, "")
    assert outcome(lambda: items.get(timeout=-1)) == (ValueError, "'timeout' must be a non-negative number")
    assert outcome(lambda: items.put(1, timeout=-1)) == (ValueError, "'timeout' must be a non-negative number")
    assert outcome(items.get_nowait) == (queue.Empty, "")
    for number in range(2):
        items.put(number)
    assert (items.full(), items.empty()) == (True, False)
    assert outcome(lambda: items.put(2, timeout=SOON_S)) == (queue.Full, "")
    assert outcome(lambda: items.put_nowait(2)) == (queue.Full, "")
    putting = world.start(lambda: [items.put(number) for number in range(2, 30)])
    assert [items.get(timeout=GUARD_S) for _ in range(30)] == list(range(30))
    putting.join(GUARD_S)
    simple = world.queues.SimpleQueue()
    assert outcome(lambda: simple.get(timeout=SOON_S)) == (queue.Empty, "")
    assert outcome(lambda: simple.get(timeout=-1)) == (ValueError, "'timeout' must be a non-negative number")
    assert outcome(simple.get_nowait) == (queue.Empty, "")
    getting = world.start(lambda: items.put(simple.get()))
    simple.put("a")
    assert items.get(timeout=GUARD_S) == "a"
    getting.join(GUARD_S)


@everywhere
def test_each_item_is_got_once(world: World) -> None:
    items, got = world.queues.SimpleQueue(), deque[int]()

    def work() -> None:
        while (item := items.get()) is not None:
            got.append(item)

    threads = [world.start(work) for _ in range(3)]
    for number in range(60):
        items.put(number)
    for _ in threads:
        items.put(None)
    for each in threads:
        each.join(GUARD_S)
    assert sorted(got) == list(range(60))


# -- futures and pools


@everywhere
def test_futures_come_to_an_end_once(world: World) -> None:
    told: list[Any] = []
    future = world.pools.Future()
    future.add_done_callback(told.append)
    assert (future.done(), future.running(), future.cancelled()) == (False, False, False)
    assert outcome(lambda: future.result(timeout=SOON_S)) == (TimeoutError, "")
    assert future.set_running_or_notify_cancel()
    assert future.running()
    assert future.cancel() is False
    setting = world.start(lambda: (world.clocks.sleep(SOON_S), future.set_result(5)))
    assert future.result(timeout=GUARD_S) == 5
    setting.join(GUARD_S)
    assert told == [future]
    assert future.exception() is None
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(6)
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_exception(ValueError())
    future.add_done_callback(told.append)
    assert told == [future, future]
    assert future.cancel() is False
    failed = world.pools.Future()
    failed.set_exception(ValueError("broken"))
    assert outcome(failed.result) == (ValueError, "broken")
    assert str(failed.exception()) == "broken"


@everywhere
def test_futures_that_are_cancelled(world: World) -> None:
    told: list[Any] = []
    future = world.pools.Future()
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(told.append)
    assert future.cancel()
    assert future.cancel()
    assert told == [future]
    assert (future.done(), future.cancelled(), future.running()) == (True, True, False)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    with pytest.raises(concurrent.futures.CancelledError):
        future.exception()
    assert future.set_running_or_notify_cancel() is False
    future.add_done_callback(lambda _: 1 / 0)


@everywhere
def test_a_pool_does_as_much_at_a_time_as_it_has_threads(world: World) -> None:
    may, begun, names = world.threads.Event(), world.threads.Semaphore(0), set()

    def work(number: int, *, more: int) -> int:
        names.add(world.threads.current_thread().name)
        begun.release()
        assert may.wait(GUARD_S)
        if number == 3:
            raise ValueError("three")
        return number + more

    with world.pools.ThreadPoolExecutor(2, thread_name_prefix="pool") as pool:
        futures = [pool.submit(work, number, more=10) for number in range(6)]
        for _ in range(2):
            assert begun.acquire(timeout=GUARD_S)
        world.clocks.sleep(SOON_S)
        assert not begun.acquire(blocking=False)
        assert [each.running() for each in futures] == [True, True, False, False, False, False]
        assert futures[5].cancel()
        may.set()
        assert [each.result(timeout=GUARD_S) for each in futures[:3]] == [10, 11, 12]
        assert outcome(futures[3].result) == (ValueError, "three")
    assert futures[4].done()
    assert futures[5].cancelled()
    assert names == {"pool_0", "pool_1"}
    assert outcome(lambda: pool.submit(work, 1, more=1)) == (
        RuntimeError,
        "cannot schedule new futures after shutdown",
    )


@everywhere
def test_a_thread_that_is_idle_is_used_again(world: World) -> None:
    names = []

    def work() -> None:
        names.append(world.threads.current_thread().name)

    with world.pools.ThreadPoolExecutor(4, "pool") as pool:
        for _ in range(5):
            pool.submit(work).result(timeout=GUARD_S)
            world.clocks.sleep(SOON_S)
    assert names == ["pool_0"] * 5


@everywhere
def test_a_pool_maps_in_order(world: World) -> None:
    def slow(number: int, other: int) -> int:
        world.clocks.sleep(0.001 * (5 - number))
        if number == 4:
            raise ValueError("four")
        return number * other

    with world.pools.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(slow, range(4), [1, 2, 3, 4])) == [0, 2, 6, 12]
        found = pool.map(slow, range(5), range(5))
        assert [next(found) for _ in range(4)] == [0, 1, 4, 9]
        assert outcome(lambda: next(found)) == (ValueError, "four")
        # Nobody wants the rest then.
        later = pool.map(slow, [4] + [0] * 20, [1] * 21)
        assert outcome(lambda: next(later)) == (ValueError, "four")
        waiting = pool.map(world.clocks.sleep, [10 * SOON_S], timeout=SOON_S)
        assert outcome(lambda: next(waiting))[0] is TimeoutError


@everywhere
def test_a_pool_that_is_shut_down_ends_what_it_was_given(world: World) -> None:
    may, done = world.threads.Event(), []

    def work(number: int) -> None:
        assert may.wait(GUARD_S)
        done.append(number)

    pool = world.pools.ThreadPoolExecutor(1)
    futures = [pool.submit(work, number) for number in range(3)]
    pool.shutdown(wait=False)
    may.set()
    for each in futures:
        each.result(timeout=GUARD_S)
    pool.shutdown()
    assert done == [0, 1, 2]
    may.clear()
    pool = world.pools.ThreadPoolExecutor(1)
    futures = [pool.submit(work, number) for number in range(3)]
    world.until(futures[0].running)
    pool.shutdown(wait=False, cancel_futures=True)
    may.set()
    pool.shutdown()
    assert [each.cancelled() for each in futures] == [False, True, True]


@everywhere
def test_a_pool_prepares_its_threads(world: World) -> None:
    prepared: list[Any] = []

    def prepare(value: int) -> None:
        prepared.append((value, world.threads.current_thread()))

    with world.pools.ThreadPoolExecutor(2, initializer=prepare, initargs=(7,)) as pool:
        thread = pool.submit(world.threads.current_thread).result(timeout=GUARD_S)
    assert prepared == [(7, thread)]


# -- clocks


@everywhere
def test_clocks_go_on(world: World) -> None:
    for clock in (world.clocks.monotonic, world.clocks.perf_counter, world.clocks.wall_s):
        first = clock()
        world.clocks.sleep(SOON_S)
        second = clock()
        assert SOON_S * 0.99 <= second - first < GUARD_S
    for now in (world.clocks.utc_now(), world.clocks.local_now()):
        assert abs(now.timestamp() - world.clocks.wall_s()) < GUARD_S
    assert outcome(lambda: world.clocks.sleep(-1)) == (ValueError, "sleep length must be non-negative")
