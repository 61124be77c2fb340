"""Faults done to a simulated world."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final

from taihu.core.chaos import faults as chaos
from taihu.explore.coverage import Coverage
from taihu.explore.disk.disk import SHARED, Disk
from taihu.explore.disk.faults import DiskFault, FaultyKind
from taihu.explore.faults import Fault, Kind
from taihu.explore.network.network import Direction, Network, Which
from taihu.explore.scheduler import BEGUN_S, RUNNING
from taihu.explore.tasks import Process
from taihu.explore.world.fleet import Fleet
from taihu.explore.world.members import Member
from taihu.explore.world.processes import SimulatedProcesses
from taihu.explore.world.supervisors import Supervisor

_SLOW_LINK: Final = 50.0
_SLOW_WRITE_S: Final = 0.5
_SLOW_STEP_S: Final = 0.3
_JUMP_S: Final = 3600.0
_FAST: Final = 2.0
_OF_FRAMES: Final = {
    Kind.CORRUPT: chaos.FaultKind.CORRUPT,
    Kind.DUPLICATE: chaos.FaultKind.DUPLICATE,
    Kind.TRUNCATE: chaos.FaultKind.TRUNCATE,
}


class Disturbance:
    """Does faults to a run's processes, network and disk.

    Args:
        processes: of the run.
        supervisor: of the run.
        network: of the world.
        disk: of the world.
        tell: is told of what is done.
        coverage: is told of whom it is done to.
    """

    def __init__(
        self,
        processes: SimulatedProcesses,
        supervisor: Supervisor | Fleet,
        network: Network,
        disk: Disk,
        *,
        tell: Callable[[str, str], None],
        coverage: Coverage,
    ) -> None:
        self._coverage = coverage
        self._processes = processes
        self._supervisor = supervisor
        self._network = network
        self._disk = disk
        self._tell = tell
        self.done: list[str] = []
        self._acts: dict[Kind, Callable[[Fault, Member], None]] = {
            Kind.KILL: lambda fault, member: self._processes.kill(fault.member),
            Kind.STOP: lambda fault, member: self._stop(member.process, fault.seconds),
            Kind.SUSPEND: self._suspend,
            Kind.TERMINATE: lambda fault, member: self._signal(member),
            Kind.LEAVE: lambda fault, member: self._have_leave(member),
            Kind.POWER_LOSS: self._lose_power,
            Kind.DROP: lambda fault, member: self._network.cut(self._of(member)),
            Kind.DROP_ONE: lambda fault, member: self._drop_one(member),
            Kind.HALF_OPEN: lambda fault, member: self._network.half_open(self._of(member)),
            Kind.STALL: lambda fault, member: self._network.stall(self._of(member), fault.seconds),
            Kind.PARTITION: lambda fault, member: self._part(fault, "both"),
            Kind.DEAF: lambda fault, member: self._part(fault, "b to a"),
            Kind.MUTE: lambda fault, member: self._part(fault, "a to b"),
            Kind.SLOW_LINK: self._slow_links,
            Kind.DELAY: self._delay,
            Kind.FULL_DISK: lambda fault, member: self._spoil_disk(fault, "full"),
            Kind.SLOW_DISK: lambda fault, member: self._spoil_disk(fault, "slow"),
            Kind.READ_ONLY_DISK: lambda fault, member: self._spoil_disk(fault, "read-only"),
            Kind.CORRUPT: self._spoil,
            Kind.DUPLICATE: self._spoil,
            Kind.TRUNCATE: self._spoil,
            Kind.CLOCK_JUMP: self._jump,
            Kind.FAST_CLOCK: self._hurry,
        }

    def do(self, fault: Fault) -> None:
        """Do a fault now; nothing happens to a process that has ended."""
        if fault.kind is Kind.INTERRUPT:
            self._note(fault)
            self._supervisor.ask_to_end()
            return
        member = self._processes.found(fault.member)
        if member is not None and member.code is None:
            self._note(fault)
            self._coverage.came(member.process, fault.kind)
            self._acts[fault.kind](fault, member)

    def _note(self, fault: Fault) -> None:
        self.done.append(f"{RUNNING().now - BEGUN_S:.6f} {fault}")
        self._tell("", f"FAULT {fault}")

    def _signal(self, member: Member) -> None:
        self._processes.signal(member.process, signal.SIGTERM)

    def _have_leave(self, member: Member) -> None:
        member.leaves = True
        if member.interrupts is not None:
            member.interrupts.leaves = True
        self._signal(member)

    def _stop(self, process: Process, seconds: float) -> None:
        scheduler = RUNNING()
        scheduler.stop(process)
        self._network.stopped(process)
        scheduler.call_at(seconds, lambda: scheduler.resume(process))

    def _suspend(self, fault: Fault, member: Member) -> None:
        for each in self._processes.on_host(member.process.host):
            self._stop(each.process, fault.seconds)

    def _lose_power(self, fault: Fault, member: Member) -> None:
        for each in self._processes.on_host(member.process.host):
            self._network.crash(each.process, with_host=True)
            self._processes.end(each)
        self._disk.power_loss(member.process)

    def _of(self, member: Member) -> Which:
        """The connections of a process; of a machine, where it is that of an agent."""
        own = {member.process}
        if member.attends is not None:
            own |= {each.process for each in self._processes.on_host(member.process.host)}
        return lambda opener, acceptor, connection: opener in own or acceptor in own

    def _drop_one(self, member: Member) -> None:
        """Break one of its connections: others go on, and whoever relies on hearing by one of them is found out."""
        which = self._of(member)
        own = [
            each
            for each in self._network.connections.values()
            if which(each.opener.process, each.acceptor.process, each)
        ]
        if own:
            broken = self._network.chance.choice(own)
            self._network.cut(lambda _, __, connection: connection is broken)

    def _part(self, fault: Fault, direction: Direction) -> None:
        host = self._processes.member(fault.member).process.host
        others = [name for name in (*self._processes.hosts, "supervisor") if name != host]
        self._network.partition([host], others, direction, fault.seconds)

    def _slow_links(self, fault: Fault, member: Member) -> None:
        self._network.slow(self._of(member), _SLOW_LINK, fault.seconds)

    def _spoil_disk(self, fault: Fault, kind: FaultyKind) -> None:
        until_s = RUNNING().now + fault.seconds
        self._disk.faults.begin(
            DiskFault(kind, whose=fault.member, until_s=until_s, seconds=_SLOW_WRITE_S, below=SHARED)
        )

    def _delay(self, fault: Fault, member: Member) -> None:
        """From now on for a while each of its steps takes longer: it comes late to its points."""
        member.chaos.slow_until(RUNNING().now + fault.seconds, _SLOW_STEP_S)

    def _spoil(self, fault: Fault, member: Member) -> None:
        member.chaos.frames.takes(chaos.Fault(_OF_FRAMES[fault.kind], fault.member, after_s=0.0))

    def _jump(self, fault: Fault, member: Member) -> None:
        member.process.wall_ahead_s += _JUMP_S

    def _hurry(self, fault: Fault, member: Member) -> None:
        member.process.run_clocks_at(_FAST, RUNNING().now)
