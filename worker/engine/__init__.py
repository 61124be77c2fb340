"""The CPU training engine: layers over NHWC activations or rows of features, losses, models, and the zoo."""

from taihu.layout import Layout, TensorSpec
from worker.engine.batch_norm import BatchNorm
from worker.engine.containers import PaddedShortcut, Residual, Sequential
from worker.engine.convolution import Conv2d
from worker.engine.definition import build_from_definition
from worker.engine.dense import Dropout, Flatten, Linear, ReLU
from worker.engine.gradient_check import CheckOptions, check_gradients
from worker.engine.layer import Array, Layer, ParameterLayer, Run, Shape, StepContext, fill_normal, shape_error
from worker.engine.loading import build_layers, build_model
from worker.engine.loss import (
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    MeanSquaredError,
    make_loss,
    outputs_of_model,
    softmax_cross_entropy,
)
from worker.engine.model import Model, StepHooks
from worker.engine.pooling import AvgPool2d, GlobalAvgPool, MaxPool2d
from worker.engine.workspace import Workspace
from worker.engine.zoo import MODELS

__all__ = [
    "MODELS",
    "Array",
    "AvgPool2d",
    "BatchNorm",
    "BinaryCrossEntropy",
    "CheckOptions",
    "Conv2d",
    "CrossEntropy",
    "Dropout",
    "Flatten",
    "GlobalAvgPool",
    "Layer",
    "Layout",
    "Linear",
    "Loss",
    "MaxPool2d",
    "MeanSquaredError",
    "Model",
    "PaddedShortcut",
    "ParameterLayer",
    "ReLU",
    "Residual",
    "Run",
    "Sequential",
    "Shape",
    "StepContext",
    "StepHooks",
    "TensorSpec",
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
]
