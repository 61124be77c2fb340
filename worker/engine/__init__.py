"""The CPU training engine: layers over NHWC activations, rows and sequences, losses, models, and the zoo."""

from taihu.layout import Layout, TensorSpec
from worker.engine.attention import CausalAttention
from worker.engine.batch_norm import BatchNorm
from worker.engine.branches import Auxiliary, Concat
from worker.engine.containers import PaddedShortcut, Residual, Sequential
from worker.engine.convolution import Conv2d
from worker.engine.definition import build_from_definition
from worker.engine.dense import Dropout, Flatten, Linear, ReLU
from worker.engine.embedding import Embedding, PositionEmbedding, TiedLinear
from worker.engine.gelu import GELU
from worker.engine.gradient_check import CheckOptions, check_gradients
from worker.engine.layer import Array, Layer, ParameterLayer, Run, Shape, StepContext, fill_normal, shape_error
from worker.engine.layer_norm import LayerNorm
from worker.engine.loading import build_layers, build_model
from worker.engine.loss import (
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    MeanSquaredError,
    TokenCrossEntropy,
    make_loss,
    outputs_of_model,
    softmax_cross_entropy,
)
from worker.engine.model import Model, StepHooks
from worker.engine.pooling import AvgPool2d, GlobalAvgPool, MaxPool2d
from worker.engine.response_norm import LocalResponseNorm
from worker.engine.transformer import transformer
from worker.engine.workspace import Workspace
from worker.engine.zoo import MODELS

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
