"""The CPU training engine: layers over NHWC activations, models, and the zoo."""

from taihu.layout import Layout
from worker.engine.batch_norm import BatchNorm
from worker.engine.containers import PaddedShortcut, Residual, Sequential
from worker.engine.convolution import Conv2d
from worker.engine.definition import build_from_definition
from worker.engine.dense import Dropout, Flatten, Linear, ReLU
from worker.engine.layer import Array, Layer, ParameterLayer, Run, StepContext
from worker.engine.loading import build_model
from worker.engine.loss import softmax_cross_entropy
from worker.engine.model import Model, StepHooks
from worker.engine.pooling import AvgPool2d, GlobalAvgPool, MaxPool2d
from worker.engine.workspace import Workspace
from worker.engine.zoo import MODELS

__all__ = [
    "MODELS",
    "Array",
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "Dropout",
    "Flatten",
    "GlobalAvgPool",
    "Layer",
    "Layout",
    "Linear",
    "MaxPool2d",
    "Model",
    "PaddedShortcut",
    "ParameterLayer",
    "ReLU",
    "Residual",
    "Run",
    "Sequential",
    "StepContext",
    "StepHooks",
    "Workspace",
    "build_from_definition",
    "build_model",
    "softmax_cross_entropy",
]
