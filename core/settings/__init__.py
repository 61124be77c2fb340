"""The tables of a job file: typed, with defaults and descriptions, checked each on its own."""

from taihu.core.settings.base import Section, Url, path_or_url
from taihu.core.settings.chaos import ChaosSettings
from taihu.core.settings.checkpoint import CheckpointSettings
from taihu.core.settings.cluster import ClusterSettings
from taihu.core.settings.compression import CompressionSettings
from taihu.core.settings.data import DataSettings
from taihu.core.settings.exchange import ExchangeSettings, Transport
from taihu.core.settings.model import ModelSettings
from taihu.core.settings.optimizer import OptimizerSettings
from taihu.core.settings.run import RunSettings
from taihu.core.settings.security import SecuritySettings
from taihu.core.settings.train import TrainSettings

__all__ = [
    "ChaosSettings",
    "CheckpointSettings",
    "ClusterSettings",
    "CompressionSettings",
    "DataSettings",
    "ExchangeSettings",
    "ModelSettings",
    "OptimizerSettings",
    "RunSettings",
    "Section",
    "SecuritySettings",
    "TrainSettings",
    "Transport",
    "Url",
    "path_or_url",
]
