"""Optimizers over ranges of a parameter arena: on the servers, or on every worker in a run without servers."""

from taihu.optimization.loss_scale import LossScale
from taihu.optimization.means import MeanGradients
from taihu.optimization.ruled import RuledShard, StepRates
from taihu.optimization.shard import OptimizerShard, OptimizerState
from taihu.optimization.sums import SumShard
from taihu.optimization.whole_norm import WholeNorm
from taihu.schedule import in_steps, learning_rate

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
