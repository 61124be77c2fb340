"""A seeded scheduler: tasks, virtual time, and who goes on when."""

from __future__ import annotations

import heapq
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Final, Protocol, TypeVar, cast

from taihu.explore.carriers import Carrier
from taihu.explore.orders import Order
from taihu.explore.tasks import Ended, Process, Task

BEGUN_S: Final = 1000.0
"""The virtual time at which a run begins, in seconds."""

STALLED: Final = "its processor"
"""The words for the wait of a task that stands still, and could go on."""

_TICK_S: Final = 1e-6


class StandstillError(Exception):
    """A run that does not come to its end: everybody waits, or it has lasted too long."""


T = TypeVar("T")


class Observer(Protocol):
    """The one that is told what happens: story, coverage and aimed faults."""

    def marked(self, label: str, task: Task) -> None:
        """`task` has come to a point of that label. A fault may happen here."""
        ...


class NoObserver:
    """Nobody is told."""

    def marked(self, label: str, task: Task) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Failure:
    """An exception that ended a task, or a handler of a call on it."""

    task: Task
    error: BaseException
    traceback: str


class Scheduler:
    """Runs tasks one at a time, in an order that the seed decides, in virtual time.

    Time passes only where no task can go on: then the next timer is due. What runs on tasks calls `point` where
    others may go on, and `block` where it waits. Everything here happens on the task that runs.

    Args:
        seed: of all that is drawn.
        carrier: what carries tasks.
        order: who goes on.
        longest_s: virtual seconds after which a run is given up.
        most_points: points after which a run is given up that lets no time pass.
    """

    def __init__(
        self, seed: int, carrier: Carrier, order: Order, *, longest_s: float = 3600.0, most_points: int = 3_000_000
    ) -> None:
        self.seed = seed
        self.now = BEGUN_S
        self.tasks: list[Task] = []
        self.failures: list[Failure] = []
        self.switches = 0
        self.points = 0
        self.is_over = False
        self.observer: Observer = NoObserver()
        self.secrets = self.random("secrets")
        self._carrier = carrier
        self._order = order
        self._until_s = BEGUN_S + longest_s
        self._most_points = most_points
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Task | None, int]] = []
        # What is to be done, by the numbers of its timers.
        self._acts: dict[int, Callable[[], None]] = {}
        self._timer_number = 0
        self._digest = blake2b(digest_size=16)
        self._standstill: StandstillError | None = None
        # A Ctrl-C is no event of the simulated world, whose task runs when it arrives.
        self._interrupt: KeyboardInterrupt | None = None
        self._belongings: dict[type, object] = {}
        # Nothing of a task is asked for before `run`.
        self._main = self.current = Task(-1, lambda: None, "", Process(""))

    # -- the whole

    def run(self, main: Callable[[], object], process: Process) -> None:
        """Run `main` as the first task of `process`; returns at its end, whatever others do then.

        `close` has to follow, also where this raises.

        Raises:
            StandstillError: `main` has not come to its end; the message tells who waits for what.
            KeyboardInterrupt: this process was interrupted while any of the tasks ran.
            BaseException: what ended `main`.
        """
        with RUNNING.set(self):
            self._main = self.current = self._make(main, "main", process)
            self._carrier.prepare(self._main, lambda: self._life(self._main))
            self._carrier.begin(self._main)
            self._raise_interrupt()
            if self._standstill is not None:
                raise self._standstill
            if self._main.error is not None:
                raise self._main.error

    def close(self) -> None:
        """End all tasks that still wait, as the end of a process does: their `finally` clauses do nothing here.

        Raises:
            KeyboardInterrupt: this process was interrupted meanwhile.
        """
        with RUNNING.set(self):
            self.is_over = True
            for task in self.tasks:
                if not task.has_ended and task.carrier is not None:
                    self.current = task
                    self._carrier.end(task)
            self.tasks.clear()
            self._belongings.clear()
            self._ready.clear()
            self._timers.clear()
            self._acts.clear()
        self._raise_interrupt()

    @property
    def digest(self) -> str:
        """A hash of all switches so far and their times."""
        return self._digest.hexdigest()

    def random(self, purpose: str) -> Random:
        """A source of its own for `purpose`: what one draws moves no other one."""
        return Random(f"{self.seed} {purpose}")  # noqa: S311

    def provide(self, belonging: object) -> None:
        """Add a part of the simulated world, which stand-ins find by its type: the network, the disk."""
        self._belongings[type(belonging)] = belonging

    def find(self, kind: type[T]) -> T:
        """The part of the simulated world of that type; KeyError where it has none."""
        return cast(T, self._belongings[kind])

    def find_or_none(self, kind: type[T]) -> T | None:
        """The part of the simulated world of that type, if it has one."""
        return cast("T | None", self._belongings.get(kind))

    # -- tasks and processes

    def spawn(self, target: Callable[[], object], name: str, process: Process | None = None) -> Task:
        """Begin a task, of the running one's process if no other is named, and pass a point."""
        task = self.add(target, name, process)
        self.point("thread")
        return task

    def add(self, target: Callable[[], object], name: str, process: Process | None = None) -> Task:
        """Begin a task, and pass no point: for acts of `call_at`."""
        task = self._make(target, name, process or self.current.process)
        self._carrier.prepare(task, lambda: self._life(task))
        self._become_ready(task)
        return task

    def kill(self, process: Process) -> None:
        """None of the tasks of `process` goes on any more."""
        process.is_dead = True
        process.held.clear()
        self._ready = [task for task in self._ready if task.process is not process]

    def stop(self, process: Process) -> None:
        """Hold the tasks of `process` until `resume`."""
        if not process.is_dead:
            process.is_stopped = True
            process.held += [task for task in self._ready if task.process is process]
            self._ready = [task for task in self._ready if task.process is not process]

    def resume(self, process: Process) -> None:
        """Let the tasks of a stopped process go on."""
        if process.is_stopped:
            process.is_stopped = False
            held, process.held = process.held, []
            for task in held:
                self._become_ready(task)

    def main_task(self, process: Process) -> Task | None:
        """The first task of `process`; None where it has not begun."""
        return next((task for task in self.tasks if task.process is process), None)

    def living(self, process: Process) -> list[Task]:
        """The tasks of `process` that have not ended."""
        return [task for task in self.tasks if task.process is process and not task.has_ended]

    # -- points

    def point(self, label: str, *, gives_way: bool = False) -> None:
        """A point at which others may go on; `label` tells it in stories and to aimed faults.

        Where it `gives_way`, another one does if any can; the order says which.
        """
        if self.is_over:
            raise Ended
        me = self.current
        self.points += 1
        if self.points > self._most_points:
            self._stand_still(f"{self.points} points passed")
        self.observer.marked(label, me)
        if me.interruptions:
            self.take_interruptions(me)
        if me.process.is_dead or me.process.is_stopped:
            self._yield(me)
        elif gives_way and self._ready:
            following = self._ready.pop(self._order.choose(self._ready))
            self._ready.append(me)
            self._switch(me, following)
        elif self._order.preempts(me, self._ready):
            self._ready.append(me)
            self._go_on()
        elif stall_s := self._order.stalls_s():
            self.block(STALLED, self.now + stall_s)

    def block(self, label: str, until_s: float | None = None) -> bool:
        """Wait until `wake`; False where the virtual time `until_s` came first. See `deadline`."""
        if self.is_over:
            raise Ended
        me = self.current
        me.ticket += 1
        me.waits_for = label
        me.was_woken = None
        if until_s is not None:
            self._set_timer(until_s, me, me.ticket)
        self._go_on()
        me.waits_for = ""
        if me.interruptions:
            self.take_interruptions(me)
        return bool(me.was_woken)

    def wake(self, task: Task) -> None:
        """End the wait of `task`, if it is in one that has not ended."""
        if task.waits_for and task.was_woken is None and not task.has_ended:
            task.was_woken = True
            task.ticket += 1
            self._become_ready(task)

    def interrupt(self, task: Task, act: Callable[[], None]) -> None:
        """Have `task` do `act` before it goes on, as a signal handler; a wait that it is in ends as by a timeout."""
        task.interruptions.append(act)
        if task.waits_for and task.was_woken is None and not task.has_ended:
            task.was_woken = False
            task.ticket += 1
            self._become_ready(task)

    def take_interruptions(self, me: Task) -> None:
        """Have the running task do what signals want of it, if it takes them."""
        while me.interruptions and me.takes_interruptions:
            me.interruptions.pop(0)()

    def note_failure(self, error: BaseException) -> None:
        """Note that `error`, which is being handled, has ended what this task did."""
        self.failures.append(Failure(self.current, error, traceback.format_exc()))

    def deadline(self, timeout_s: float | None) -> float | None:
        """The virtual time at which a wait of `timeout_s` by the clock of the running task's process ends."""
        return None if timeout_s is None else self.now + max(0.0, timeout_s) / self.current.process.clock_rate

    def seconds_until(self, until_s: float) -> float:
        """The time until a virtual time by the clock of the running task's process, at least 0; undoes `deadline`."""
        return max(0.0, until_s - self.now) * self.current.process.clock_rate

    def call_at(self, delay_s: float, act: Callable[[], None]) -> int:
        """Have `act` done after so long, between tasks; it passes no point and waits for nothing.

        Returns the number by which `call_off` knows it.
        """
        number = self._set_timer(self.now + max(0.0, delay_s), None, 0)
        self._acts[number] = act
        return number

    def call_off(self, number: int) -> None:
        """Have nothing done, if it has not been done yet."""
        self._acts.pop(number, None)

    def read_clock(self) -> float:
        """The time by the clock of the running task's process.

        Each reading takes a moment, as it does on a machine: whoever looks again sees it move.
        """
        self.now += _TICK_S
        return self.current.process.clock_at(self.now)

    # -- how it is done

    def _make(self, target: Callable[[], object], name: str, process: Process) -> Task:
        task = Task(len(self.tasks), target, name, process)
        self.tasks.append(task)
        return task

    def _life(self, task: Task) -> Task | None:
        """Run a task to its end; who goes on then, None for those at home."""
        try:
            if not self.is_over:
                task.target()
        except Ended:
            pass
        except KeyboardInterrupt as interrupt:
            self._interrupt = interrupt
        except BaseException as error:
            task.error = error
            self.note_failure(error)
        task.has_ended = True
        if self.is_over or task is self._main or self._interrupt is not None:
            return None
        for joiner in task.joiners:
            self.wake(joiner)
        task.joiners.clear()
        following = self._pick()
        if following is not None:
            self._note(following)
        return following

    def _raise_interrupt(self) -> None:
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt

    def _become_ready(self, task: Task) -> None:
        if task.process.is_stopped:
            task.process.held.append(task)
        elif not task.process.is_dead:
            self._ready.append(task)

    def _yield(self, me: Task) -> None:
        """The running task's process was killed or stopped: others go on."""
        self._become_ready(me)
        self._go_on()

    def _go_on(self) -> None:
        """Let another task go on; returns when the one that calls is to go on."""
        me = self.current
        following = self._pick()
        if following is me:
            return
        self._switch(me, following)

    def _switch(self, me: Task, following: Task | None) -> None:
        if following is None:
            self._carrier.go_home(me)
        else:
            self._note(following)
            self._carrier.switch(me, following)
        if self.is_over:
            raise Ended

    def _note(self, following: Task) -> None:
        self.switches += 1
        self._digest.update(b"%d@%.6f;" % (following.number, self.now))
        self.current = following

    def _pick(self) -> Task | None:
        """The task that goes on; time passes where none is ready. None where the run stands still."""
        while not self._ready:
            if not self._timers:
                self._standstill = self._told("everybody waits")
                return None
            due_s, number, task, ticket = heapq.heappop(self._timers)
            if task is None:
                act = self._acts.pop(number, None)
                if act is not None:
                    self.now = max(self.now, due_s)
                    act()
            elif task.ticket == ticket and not (task.has_ended or task.process.is_dead):
                self.now = max(self.now, due_s)
                task.ticket += 1
                task.was_woken = False
                self._become_ready(task)
            if self.now > self._until_s:
                self._standstill = self._told(f"{self.now - BEGUN_S:.0f} virtual seconds have passed")
                return None
        return self._ready.pop(self._order.choose(self._ready))

    def _stand_still(self, why: str) -> None:
        self._standstill = self._told(why)
        self._carrier.go_home(self.current)
        raise Ended

    def _told(self, why: str) -> StandstillError:
        waiting = [
            f"{task} waits for {task.waits_for or 'its turn'}"
            for task in self.tasks
            if not (task.has_ended or task.process.is_dead)
        ]
        return StandstillError(f"{why}: " + "; ".join(waiting))

    def _set_timer(self, due_s: float, task: Task | None, ticket: int) -> int:
        self._timer_number += 1
        heapq.heappush(self._timers, (due_s, self._timer_number, task, ticket))
        return self._timer_number


class _Running:
    """The scheduler of the run that goes on. Code that makes stand-ins knows of none, as with event loops."""

    def __init__(self) -> None:
        self._scheduler: Scheduler | None = None

    def set(self, scheduler: Scheduler) -> _Running:
        """The scheduler that stand-ins find until `with` ends."""
        self._scheduler = scheduler
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._scheduler = None

    def __call__(self) -> Scheduler:
        """The scheduler of the run that goes on.

        Raises:
            Ended: there is none: an object of a run that is over is used, by a finalizer for example.
        """
        if self._scheduler is None:
            raise Ended
        return self._scheduler


RUNNING: Final = _Running()
"""Returns the scheduler of the run that goes on in this process."""
