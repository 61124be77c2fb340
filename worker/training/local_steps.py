"""Local steps: several updates of a worker's own parameters, and the difference that they have made.

DiLoCo (Douillard et al. 2023, algorithm 1) and, where the difference is compressed and what is held back is added to
it, SparseLoCo (Sarfi et al. 2025): each worker updates its own copy by its own batches; the difference from the
parameters that all began with is exchanged in place of a gradient, and the outer step changes those by the mean.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import CheckpointError
from taihu.core.checkpoint.held_back import LOCAL, local_state_of
from taihu.core.checkpoint.reading import Checkpoint
from taihu.core.model.layout import Layout
from taihu.core.optimization import OptimizerState, learning_rate
from taihu.core.optimization.rules import Constants
from taihu.core.settings import OptimizerSettings
from taihu.kernels.clip import squared_norm
from taihu.worker.memory.arenas import Arenas

Values = NDArray[np.float32]


class LocalSteps:
    """The local steps of one worker; one thread, which trains, calls all of these.

    In a step every layer is `begun` once, when the parameters that all workers have are in the arena; updated `count`
    times; and then turned into its `difference`, which leaves those parameters in the arena.

    Args:
        layout: of the arenas.
        arenas: parameters and gradients, both whole.
        settings: the rule of local updates, its schedule in steps.
        count: of local steps in a step.
        largest_norm: of the gradient of all layers together, see `scale`; None leaves it as it is.
    """

    def __init__(
        self,
        layout: Layout,
        arenas: Arenas,
        settings: OptimizerSettings,
        count: int,
        largest_norm: float | None = None,
    ) -> None:
        self.count = count
        self.waits_for_norm = largest_norm is not None
        """Whether layers are updated when the gradient of all is complete, for its norm."""

        self._largest_norm = math.inf if largest_norm is None else largest_norm
        self._bounds = [*zip(layout.offsets, layout.offsets[1:], strict=False)]
        self._parameters, self._gradients = arenas.parameters, arenas.gradients
        self._common = np.zeros_like(arenas.parameters)
        self._settings = settings
        self._optimizer = OptimizerState(settings, layout.elements)
        self._optimizer.warm_up()
        squared_norm(np.zeros(1, dtype=np.float32))  # compiled, or loaded, before the first step

    @property
    def layers(self) -> range:
        """All layers, in backward order."""
        return range(len(self._bounds))

    def number(self, step: int, turn: int) -> int:
        """The number of local step `turn` (from 1) of a step among all of the run, from 1."""
        return (step - 1) * self.count + turn

    def begun(self, layer: int) -> None:
        """Keep the parameters of a layer, which all workers have, as the step begins with them."""
        start, stop = self._bounds[layer]
        np.copyto(self._common[start:stop], self._parameters[start:stop])

    def scale(self) -> float:
        """The factor by which the gradient of all layers, which is complete, has at most the largest norm."""
        if not self.waits_for_norm:
            return 1.0
        norm = math.sqrt(squared_norm(self._gradients))
        return min(1.0, self._largest_norm / norm) if norm else 1.0

    def update(self, layer: int, step: int, turn: int, scale: float = 1.0) -> None:
        """Update a layer by its own gradient, which is multiplied by `scale`.

        The rate is that of the step: all of its local steps have the same. Means of gradients count local steps.
        """
        start, stop = self._bounds[layer]
        constants = Constants(learning_rate(self._settings, step), self._settings.weight_decay)
        parameters, gradient = self._parameters[start:stop], self._gradients[start:stop]
        self._optimizer.update(start, parameters, gradient, self.number(step, turn), scale, constants)

    def difference(self, layer: int) -> None:
        """Turn the gradient of a layer into what its parameters have lost, and put the common ones back."""
        start, stop = self._bounds[layer]
        parameters, common = self._parameters[start:stop], self._common[start:stop]
        np.subtract(common, parameters, out=self._gradients[start:stop])
        np.copyto(parameters, common)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that outlasts a step, by its names in a checkpoint; live views, each of shape (elements,)."""
        return {f"{LOCAL}{name}": array for name, array in self._optimizer.arrays.items()}

    def resume(self, checkpoint: Checkpoint, rank: int, workers: int) -> None:
        """Go on from a checkpoint as worker `rank` of so many; where there were others, by the mean of their state.

        Raises:
            CheckpointError: its workers made no local steps, or by another rule.
        """
        kept = local_state_of(checkpoint, rank, workers)
        for name, array in self.arrays().items():
            if name not in kept or kept[name].shape != array.shape:
                raise CheckpointError(
                    f"{checkpoint.folder}: it has no {name.removeprefix(LOCAL)} of local steps by optimizer "
                    f"'{self._settings.name}'; go on with the optimizer and exchange.local_steps that wrote it"
                )
            np.copyto(array, kept[name])
