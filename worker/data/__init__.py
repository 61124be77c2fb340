"""Data sets, checked file by file, and the batches that every rank draws from them."""

from worker.data.batches import Augment, Batches
from worker.data.dataset import Dataset, normalise
from worker.data.load import load_dataset

__all__ = ["Augment", "Batches", "Dataset", "load_dataset", "normalise"]
