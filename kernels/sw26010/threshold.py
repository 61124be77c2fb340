"""Selection of the largest magnitudes: an exact threshold by three passes of histograms, then one that collects.

Without its sign bit, a fp32 as an integer is ordered as its magnitude is. The digits of the k-th largest one are
found from the highest: every CPE counts the digits of its pieces in LDM, and the counts are summed over the mesh.
"""

from __future__ import annotations

from typing import Final

from taihu.kernels.sw26010.dma import Transfer
from taihu.kernels.sw26010.ledger import Ledger
from taihu.kernels.sw26010.machine import CPES
from taihu.kernels.sw26010.streams import Pass, plan_stream

DIGITS: Final = ((20, 2048), (10, 1024), (0, 1024))
COLLECT: Final = Pass("collect", reads=1, writes=0, arithmetic=2, flops=1, scattered=1)
_ENTRY_BYTES: Final = 8  # A position and a value.


def histogram(bins: int) -> Pass:
    """The pass that counts digits of so many values."""
    return Pass("histogram", reads=1, writes=0, arithmetic=2, flops=0, scattered=2, columns=bins, sums=bins)


def selection_cost(elements: int, selected: int, core_groups: int = 1) -> Ledger:
    """The ledger of finding the threshold of `elements` fp32 values and collecting the `selected` ones."""
    ledger = Ledger(core_groups=core_groups)
    for _, bins in DIGITS:
        ledger = ledger.then(plan_stream(histogram(bins), elements, core_groups=core_groups).cost())
    return collected(ledger, plan_stream(COLLECT, elements, core_groups=core_groups).cost(), selected)


def collected(ledger: Ledger, collect: Ledger, selected: int) -> Ledger:
    """The ledger of the histograms, with the pass `collect`, which writes so many `selected` values."""
    collect.alone(transfers=[Transfer(((_ENTRY_BYTES * -(-selected // CPES), CPES),))])
    ledger = ledger.then(collect)
    ledger.compulsory_bytes = collect.compulsory_bytes + _ENTRY_BYTES * selected
    return ledger
