"""Between stages 2 and 3 of ZeRO: 16-bit parameters are fetched again for backward, and divided among nobody."""

from taihu.core.traits.stages import Stage

STAGE = Stage(4, divides_optimizer=True, divides_gradients=True, keeps_halves=False)
