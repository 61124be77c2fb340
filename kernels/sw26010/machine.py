"""The SW26010 in numbers: every constant of the model, and where it comes from.

[F] was found in public code, benchmarks or papers, [D] derived from those. Nothing here was fitted to a result.
"""

from __future__ import annotations

from typing import Final

# [D] 1.45 GHz; the 1.5 GHz that are printed contradict the machine's own 125.436 PF on 40,960 chips.
CLOCK_HZ: Final = 1.45e9
CORE_GROUPS: Final = 4  # [F] on a chip, each with memory of its own.
MESH: Final = 8  # [F] rows, and columns, of CPEs in a core group.
CPES: Final = MESH * MESH
# [F] fp64 values in a vector; a fused multiply-add of one vector can be issued each cycle: 8 flop.
FMA_LANES: Final = 4
# [D] 64 * 11.6 GF.
PEAK_FLOPS_PER_CPE_CLUSTER: Final = CPES * 2 * FMA_LANES * CLOCK_HZ
# [D] 765.6 GF, with the 23.2 GF of the MPE, which does not compute here. Efficiencies refer to it, as published ones.
PEAK_FLOPS_PER_GROUP: Final = PEAK_FLOPS_PER_CPE_CLUSTER + 16 * CLOCK_HZ

LDM_BYTES: Final = 64 * 1024  # [F] of one CPE.
LDM_USABLE_BYTES: Final = 60 * 1024  # [F] what swGEMM and swDNN leave to tiles; the rest holds stack and variables.

LDM_LOAD_CYCLES: Final = 4  # [F] latency of a load from the CPE's own LDM.
BROADCAST_CYCLES: Final = 14  # [F] latency of a broadcast along a row or column of the mesh.
DMA_ISSUE_CYCLES: Final = 25  # [F] for one request.
GLOBAL_LOAD_CYCLES: Final = 278  # [F] the longer latency of main memory (177-278): until a first request arrives.

# [F] Measured bandwidth of a core group, bytes per second, by the length of the contiguous blocks of strided DMA.
DMA_TABLE: Final[tuple[tuple[int, float], ...]] = (
    (16, 3.36e9),
    (32, 6.34e9),
    (64, 11.97e9),
    (96, 10.1e9),
    (128, 13.4e9),
    (192, 19.3e9),
    (256, 17.6e9),
    (512, 21.1e9),
    (768, 22.4e9),
    (1024, 23.5e9),
    (4096, 26.2e9),
)

# [F] The register blocks of swDNN and swGEMM: 4 vectors of rows by 4 columns, 16 accumulators.
REGISTER_VECTORS: Final = 4
REGISTER_COLUMNS: Final = 4
