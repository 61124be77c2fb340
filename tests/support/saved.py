"""Saved models without a file: random parameters and running statistics, and normalisation that matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from taihu.worker.engine import Layer, Model
from taihu.worker.saved.metadata import SavedModel
from taihu.worker.saved.prediction import LoadedModel
from taihu.worker.saved.reading import StoredModel


def loaded(root: Layer, shape: tuple[int, ...], outputs: int, **said: Any) -> LoadedModel:
    """A model of these layers, as if it came from a file."""
    model = Model(root, shape, outputs)
    arena = np.zeros(model.layout.elements, np.float32)
    model.bind(arena, np.zeros_like(arena))
    model.initialize(1)
    generator = np.random.default_rng(2)
    for name, parameter in model.parameters_by_name().items():
        if not name.endswith("weight"):
            parameter[...] += generator.normal(0, 0.1, parameter.shape).astype(np.float32)
    for name, buffer in model.buffers().items():
        buffer[...] = (
            generator.uniform(0.5, 2, buffer.size) if name.endswith("variance") else generator.normal(0, 0.3)
        )
    channels = shape[-1]
    facts = {
        "model": "small_cnn",
        "definition": model.definition(),
        "input_shape": shape,
        "outputs": outputs,
        "mean": tuple(float(each) for each in 100 + np.arange(channels)),
        "scale": tuple(float(each) for each in 50 + np.arange(channels)),
        "data": "digits",
        "steps": 3,
    }
    return LoadedModel(StoredModel(model, arena, SavedModel.model_validate(facts | said)), Path("model.safetensors"))


def raw(shape: tuple[int, ...], count: int = 3) -> np.ndarray:
    """Inputs as a data set has them, (count, *shape), 0..255."""
    return np.random.default_rng(5).integers(0, 256, (count, *shape)).astype(np.float32)
