"""Finding a data set by its name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from taihu.core.base.errors import DataError
from taihu.core.model.model_defaults import smallest_size
from taihu.core.model.names import TEXT_DATA, OwnData, own_data
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.reading import NOTHING_KNOWN, AsTrained
from taihu.worker.data.base.sources import folder_kind, missing_package
from taihu.worker.data.base.statistics import Statistics, no_statistics
from taihu.worker.data.built_in.cifar10 import load_cifar10
from taihu.worker.data.built_in.digits import load_digits
from taihu.worker.data.built_in.fashion_mnist import load_fashion_mnist
from taihu.worker.data.built_in.python_source import load_python_source
from taihu.worker.data.built_in.synthetic import load_synthetic
from taihu.worker.data.own.arrays import load_own_arrays
from taihu.worker.data.own.function import load_own_function
from taihu.worker.data.own.inputs import Paired
from taihu.worker.data.own.text_files import load_own_text
from taihu.worker.data.resize import ResizedExamples


def load_dataset(settings: DataSettings, model: str = "", known: AsTrained = NOTHING_KNOWN) -> Dataset:
    """Load a built-in data set, `synthetic:CxHxW[:classes=K][:samples=N]`, or the user's own data.

    `settings.path` is the folder of the files of `fashion-mnist` and `cifar10`, and is handed to a function of the
    user's own; the others need none and ignore it. Where `settings.size` does not say it, images that are too small
    for `model`, one of the zoo, are resized to the smallest that it can take. What a saved model was trained on is
    `known`: images and tables are read alike.

    Raises:
        DataError: the data set is missing or damaged.
    """
    own = own_data(settings.name)
    dataset = _load(settings) if own is None else _load_own(settings, own, known)
    if settings.normalise == "none":
        mean, scale, _ = no_statistics(dataset.input_shape)
        dataset = replace(dataset, mean=mean, scale=scale)
    size = settings.size or smallest_size(model, dataset.input_shape)
    if size is not None and size != dataset.input_shape[:2]:
        dataset = _resized(dataset, size)
    return dataset


def with_statistics(dataset: Dataset, statistics: Statistics) -> Dataset:
    """The data set with other statistics than its own: those of the inputs that a model was trained on."""
    mean, scale, offset = statistics
    if isinstance(dataset.train, Paired) and isinstance(dataset.test, Paired):
        train, test = dataset.train.moved(offset), dataset.test.moved(offset)
        return replace(dataset, train=train, test=test, mean=mean, scale=scale, offset=offset)
    # Resized images, and data of taihu's own.
    there, wanted = (0.0 if each is None else each for each in (dataset.offset, offset))
    moved: NDArray[np.float32] = (mean + (wanted - there)).astype(np.float32)
    return replace(dataset, mean=mean if offset is dataset.offset is None else moved, scale=scale)


def _load(settings: DataSettings) -> Dataset:
    name, path = settings.name, settings.path
    if name == "digits":
        return load_digits()
    if name == "fashion-mnist":
        return load_fashion_mnist(path)
    if name == "cifar10":
        return load_cifar10(path)
    if name == TEXT_DATA:
        return load_python_source(settings.sequence)
    return load_synthetic(name)


def _load_own(settings: DataSettings, own: OwnData, known: AsTrained) -> Dataset:
    kind = folder_kind(own.path) if own.kind == "folder" else own.kind
    if kind == "function":
        return load_own_function(settings, own)
    if kind == "arrays":
        return load_own_arrays(settings, own)
    if kind == "text":
        return load_own_text(settings, own)
    try:
        # Their packages are extras.
        if kind == "images":
            from taihu.worker.data.own.images.image_folder import load_own_images  # noqa: PLC0415

            return load_own_images(settings, own, known.depth)
        from taihu.worker.data.own.tables.table import load_own_table  # noqa: PLC0415

        return load_own_table(settings, own, known.reading, known.class_names)
    except ImportError:
        raise missing_package(own.path, kind) from None


def _resized(dataset: Dataset, size: tuple[int, int]) -> Dataset:
    """The data set with images of another size; the statistics stay those of its own images."""
    shape = dataset.input_shape
    if len(shape) != 3:
        raise DataError(
            f"{dataset.name}: data.resize is for images of (height, width, channels), the inputs are vectors of "
            f"{shape[0]}; leave it out"
        )
    train, test = (ResizedExamples(part, shape, size) for part in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test, input_shape=(*size, shape[2]), load_ahead=True)
