"""The ledger: what a kernel on the processor did, and how long that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from taihu.kernels.sw26010.dma import Transfer
from taihu.kernels.sw26010.machine import CLOCK_HZ, GLOBAL_LOAD_CYCLES, PEAK_FLOPS_PER_GROUP

Limit = Literal["compute", "pipeline", "dma", "ldm"]


@dataclass(frozen=True)
class Work:
    """Work of all CPEs of a core group at the same time, on data in LDM.

    Attributes:
        cycles: of the CPE that works longest.
        arithmetic_cycles: those of them in which pipeline 0 does arithmetic that counts.
        flops: of all CPEs.
        broadcasts: vectors sent along rows and columns of the mesh.
    """

    cycles: int
    arithmetic_cycles: int = 0
    flops: int = 0
    broadcasts: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.cycles + other.cycles,
            self.arithmetic_cycles + other.arithmetic_cycles,
            self.flops + other.flops,
            self.broadcasts + other.broadcasts,
        )


_NOTHING = Work(0)


@dataclass
class Ledger:
    """Sums over the steps of a kernel on one or several core groups.

    Attributes:
        cycles: from the start until the last core group is done.
        arithmetic_cycles: of pipeline 0 with arithmetic; these and the next two of the core group that works longest.
        work_cycles: of all work on the CPEs.
        dma_cycles: of DMA, hidden behind work or not.
        flops: additions and multiplications that the result needs; those of padding do not count.
        broadcasts: vectors (32 bytes) sent along rows and columns of the mesh.
        transfers: number of contiguous blocks that DMA moved, by their length in bytes.
        compulsory_bytes: what would be moved if every operand were moved once.
        core_groups: how many took part.
    """

    cycles: int = 0
    arithmetic_cycles: int = 0
    work_cycles: int = 0
    dma_cycles: int = 0
    flops: int = 0
    broadcasts: int = 0
    transfers: Counter[int] = field(default_factory=Counter)
    compulsory_bytes: int = 0
    core_groups: int = 1

    def step(self, work: Work = _NOTHING, transfers: Sequence[Transfer] = (), times: int = 1) -> None:
        """A step of double buffering, `times` times: DMA for the next tile goes on while this tile is worked on."""
        dma = sum(transfer.cycles for transfer in transfers)
        self.cycles += times * max(work.cycles, dma)
        self._record(work, transfers, dma, times)

    def alone(self, work: Work = _NOTHING, transfers: Sequence[Transfer] = (), times: int = 1) -> None:
        """Work and transfers that nothing hides, one after another, because they use the same buffer."""
        dma = sum(transfer.cycles for transfer in transfers)
        self.cycles += times * (work.cycles + dma)
        self._record(work, transfers, dma, times)

    def begin(self, transfers: Sequence[Transfer]) -> None:
        """T_init: the first tiles arrive before any work; their bytes are counted by the steps that use them."""
        self.cycles += GLOBAL_LOAD_CYCLES + sum(transfer.cycles for transfer in transfers)

    def _record(self, work: Work, transfers: Iterable[Transfer], dma_cycles: int, times: int) -> None:
        self.work_cycles += times * work.cycles
        self.arithmetic_cycles += times * work.arithmetic_cycles
        self.dma_cycles += times * dma_cycles
        self.flops += times * work.flops
        self.broadcasts += times * work.broadcasts
        for transfer in transfers:
            for block_bytes, blocks in transfer.runs:
                self.transfers[block_bytes] += times * blocks

    @property
    def dma_bytes(self) -> int:
        """All that DMA moved."""
        return sum(block * count for block, count in self.transfers.items())

    @property
    def seconds(self) -> float:
        """Seconds at the processor's clock."""
        return self.cycles / CLOCK_HZ

    @property
    def gflops(self) -> float:
        """10^9 useful operations in a second, of all core groups that take part."""
        return self.flops / self.seconds / 1e9 if self.cycles else 0.0

    @property
    def efficiency(self) -> float:
        """Share of the peak of the core groups that take part, MPEs included."""
        return self.gflops * 1e9 / (PEAK_FLOPS_PER_GROUP * self.core_groups)

    @property
    def limited_by(self) -> Limit:
        """The use of most of the time.

        `compute` is arithmetic itself. `pipeline` is other work on the CPEs: operands that are loaded or broadcast in
        more cycles than arithmetic takes, latencies, conversions, parts of the mesh without data. `dma` is waiting
        for memory, and `ldm` as well where moving every operand once would take less time than the work: then it is
        the size of LDM that makes DMA read operands again.
        """
        waiting = self.cycles - self.work_cycles
        pipeline = self.work_cycles - self.arithmetic_cycles
        if self.arithmetic_cycles >= max(waiting, pipeline):
            return "compute"
        if pipeline >= waiting:
            return "pipeline"
        once = self.dma_cycles * self.compulsory_bytes / max(1, self.dma_bytes)
        return "ldm" if once < self.work_cycles else "dma"

    def then(self, other: Ledger) -> Ledger:
        """The ledger of this kernel and the other after it."""
        return Ledger(
            self.cycles + other.cycles,
            self.arithmetic_cycles + other.arithmetic_cycles,
            self.work_cycles + other.work_cycles,
            self.dma_cycles + other.dma_cycles,
            self.flops + other.flops,
            self.broadcasts + other.broadcasts,
            self.transfers + other.transfers,
            self.compulsory_bytes + other.compulsory_bytes,
            max(self.core_groups, other.core_groups),
        )

    @staticmethod
    def together(groups: Sequence[Ledger], compulsory_bytes: int = 0) -> Ledger:
        """Core groups that work at the same time, each with memory of its own: the slowest one says how long."""
        slowest = max(groups, key=lambda ledger: ledger.cycles)
        return Ledger(
            slowest.cycles,
            slowest.arithmetic_cycles,
            slowest.work_cycles,
            slowest.dma_cycles,
            sum(ledger.flops for ledger in groups),
            sum(ledger.broadcasts for ledger in groups),
            sum((ledger.transfers for ledger in groups), Counter()),
            compulsory_bytes or sum(ledger.compulsory_bytes for ledger in groups),
            len(groups),
        )
