"""The tables of a job file: typed, with defaults and descriptions, checked each on its own."""

from taihu.settings.base import Section, Url, path_or_url
from taihu.settings.chaos import ChaosSettings
from taihu.settings.checkpoint import CheckpointSettings
from taihu.settings.cluster import ClusterSettings
from taihu.settings.compression import CompressionSettings
from taihu.settings.data import DataSettings
from taihu.settings.exchange import ExchangeSettings, Transport
from taihu.settings.model import ModelSettings
from taihu.settings.optimizer import OptimizerSettings
from taihu.settings.run import RunSettings
from taihu.settings.security import SecuritySettings
from taihu.settings.train import TrainSettings

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
