"""Work without products: every CPE takes a unit of its own, 64 units make a wave of a core group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taihu.kernels.sw26010.dma import Transfer
from taihu.kernels.sw26010.ledger import Ledger, Work
from taihu.kernels.sw26010.machine import BROADCAST_CYCLES, CPES, FMA_LANES, LDM_LOAD_CYCLES, MESH


@dataclass(frozen=True)
class Unit:
    """A unit of one CPE: its work, and the DMA before and after it, both double buffered."""

    work: Work
    transfers: tuple[Transfer, ...]


def vector_work(elements: int, arithmetic: int, memory: int, flops: int) -> Work:
    """The work of one CPE on elements in its LDM.

    Args:
        elements: how many.
        arithmetic: instructions of pipeline 0 for each vector.
        memory: loads and stores for each vector, of pipeline 1.
        flops: useful ones for each element.
    """
    vectors = -(-elements // FMA_LANES)
    return Work(LDM_LOAD_CYCLES + vectors * max(arithmetic, memory), flops=elements * flops)


def wave(ledger: Ledger, unit: Unit, cpes: int = CPES, times: int = 1) -> None:
    """`cpes` CPEs do a unit each, `times` times over."""
    flops = unit.work.flops * cpes
    work = Work(unit.work.cycles, flops // (CPES * 2 * FMA_LANES), flops)
    transfers = [transfer.scaled(cpes) for transfer in unit.transfers]
    if not ledger.dma_cycles:
        ledger.begin(transfers)
    ledger.step(work, transfers, times)


def add_waves(ledger: Ledger, units: Iterable[tuple[Unit, int]]) -> None:
    """(Unit, how many) after one another: the units of a wave are alike."""
    for unit, count in units:
        full, rest = divmod(count, CPES)
        if full:
            wave(ledger, unit, CPES, full)
        if rest:
            wave(ledger, unit, rest)


def reduction_work(values: int) -> Work:
    """Sums of `values` fp64 over all CPEs: along the rows, then along the first column, to all by broadcast."""
    vectors = -(-values // FMA_LANES)
    hops = 2 * (MESH - 1)
    cycles = hops * (BROADCAST_CYCLES + vectors) + 2 * (BROADCAST_CYCLES + vectors)
    sent = vectors * (MESH * (MESH - 1) + (MESH - 1) + 1 + MESH)
    return Work(cycles, flops=values * (CPES - 1), broadcasts=sent)
