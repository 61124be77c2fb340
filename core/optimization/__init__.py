"""Optimizers over ranges of a parameter arena: on the servers, or on every worker in a run without servers."""

from taihu.core.job.schedule import in_steps, learning_rate
from taihu.core.optimization.loss_scale import LossScale
from taihu.core.optimization.means import MeanGradients
from taihu.core.optimization.ruled import RuledShard, StepRates
from taihu.core.optimization.rules import OptimizerShard, OptimizerState
from taihu.core.optimization.sums import SumShard
from taihu.core.optimization.whole_norm import WholeNorm

__all__ = [
    "LossScale",
    "MeanGradients",
    "OptimizerShard",
    "OptimizerState",
    "RuledShard",
    "StepRates",
    "SumShard",
    "WholeNorm",
    "in_steps",
    "learning_rate",
]
