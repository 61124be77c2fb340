"""The passes of layers, optimizers and collectives, with what they compute in LDM."""

from __future__ import annotations

from typing import Final

from taihu.kernels.sw26010.streams import Pass

# Arithmetic counts instructions: an addition, a product and a fused pair take one each, a comparison with select two.
ADD: Final = Pass("add", reads=2, writes=1, arithmetic=1, flops=1)
COPY: Final = Pass("copy", reads=1, writes=1, arithmetic=0, flops=0)
RELU: Final = Pass("relu", reads=1, writes=1, arithmetic=1, flops=1)
RELU_GRADIENT: Final = Pass("relu gradient", reads=2, writes=1, arithmetic=2, flops=1)
ADD_BIAS: Final = Pass("bias", reads=1, writes=1, arithmetic=1, flops=1, columns=1)
COLUMN_SUMS: Final = Pass("column sums", reads=1, writes=0, arithmetic=1, flops=1, columns=1, sums=1)
MOMENTS: Final = Pass("moments", reads=1, writes=0, arithmetic=2, flops=3, columns=2, sums=2)
SCALE_SHIFT: Final = Pass("scale and shift", reads=1, writes=1, arithmetic=1, flops=2, columns=2)
GRADIENT_MOMENTS: Final = Pass("gradient moments", reads=2, writes=0, arithmetic=3, flops=4, columns=3, sums=2)
NORMALIZE_GRADIENT: Final = Pass("normalize gradient", reads=2, writes=1, arithmetic=2, flops=4, columns=3)
SGD: Final = Pass("sgd", reads=2, writes=1, arithmetic=3, flops=5)
SGD_MOMENTUM: Final = Pass("sgd with momentum", reads=3, writes=2, arithmetic=4, flops=7)


# A root and a quotient have no pipeline: we count 16 instructions of each.
_ROOT: Final = 16


def response_norm(size: int) -> tuple[Pass, Pass]:
    """Local response normalisation over `size` channels, forward and backward, with an exponent of two roots.

    Backward computes the sums of squares again.
    """
    forward = Pass("response norm", reads=1, writes=1, arithmetic=size + 4 + 3 * _ROOT, flops=size + 6)
    backward = Pass(
        "response norm gradient", reads=2, writes=1, arithmetic=2 * size + 8 + 4 * _ROOT, flops=2 * size + 12
    )
    return forward, backward
