"""The CPU training engine: layers over NHWC activations, rows and sequences, losses, models, and the zoo."""

from taihu.core.model.layout import Layout, TensorSpec
from taihu.worker.engine.base.layer import (
    Array,
    Layer,
    ParameterLayer,
    Run,
    Shape,
    StepContext,
    fill_normal,
    shape_error,
)
from taihu.worker.engine.base.loss import (
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    MeanSquaredError,
    TokenCrossEntropy,
    make_loss,
    outputs_of_model,
    softmax_cross_entropy,
)
from taihu.worker.engine.base.workspace import Workspace
from taihu.worker.engine.gradient_check import CheckOptions, check_gradients
from taihu.worker.engine.layers.attention import CausalAttention
from taihu.worker.engine.layers.batch_norm import BatchNorm
from taihu.worker.engine.layers.branches import Auxiliary, Concat
from taihu.worker.engine.layers.containers import PaddedShortcut, Residual, Sequential
from taihu.worker.engine.layers.convolution import Conv2d
from taihu.worker.engine.layers.dense import Dropout, Flatten, Linear, ReLU
from taihu.worker.engine.layers.embedding import Embedding, PositionEmbedding, TiedLinear
from taihu.worker.engine.layers.gelu import GELU
from taihu.worker.engine.layers.layer_norm import LayerNorm
from taihu.worker.engine.layers.pooling import AvgPool2d, GlobalAvgPool, MaxPool2d
from taihu.worker.engine.layers.response_norm import LocalResponseNorm
from taihu.worker.engine.models.definition import build_from_definition
from taihu.worker.engine.models.loading import build_layers, build_model
from taihu.worker.engine.models.model import Model, StepHooks
from taihu.worker.engine.models.transformer import transformer
from taihu.worker.engine.models.zoo import MODELS

__all__ = [
    "GELU",
    "MODELS",
    "Array",
    "Auxiliary",
    "AvgPool2d",
    "BatchNorm",
    "BinaryCrossEntropy",
    "CausalAttention",
    "CheckOptions",
    "Concat",
    "Conv2d",
    "CrossEntropy",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAvgPool",
    "Layer",
    "LayerNorm",
    "Layout",
    "Linear",
    "LocalResponseNorm",
    "Loss",
    "MaxPool2d",
    "MeanSquaredError",
    "Model",
    "PaddedShortcut",
    "ParameterLayer",
    "PositionEmbedding",
    "ReLU",
    "Residual",
    "Run",
    "Sequential",
    "Shape",
    "StepContext",
    "StepHooks",
    "TensorSpec",
    "TiedLinear",
    "TokenCrossEntropy",
    "Workspace",
    "build_from_definition",
    "build_layers",
    "build_model",
    "check_gradients",
    "fill_normal",
    "make_loss",
    "outputs_of_model",
    "shape_error",
    "softmax_cross_entropy",
    "transformer",
]
