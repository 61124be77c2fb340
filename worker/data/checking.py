"""All defects of a data set, found by looking at every row or file of it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from taihu.core.base.errors import DataError
from taihu.core.model.names import OwnData, own_data
from taihu.core.settings import DataSettings
from taihu.worker.data.base.dataset import Dataset
from taihu.worker.data.base.defects import Defects
from taihu.worker.data.base.sources import check_sources, folder_kind, missing_package
from taihu.worker.data.load import load_dataset


@dataclass(frozen=True)
class CheckedData:
    """A data set that was looked at.

    Attributes:
        defects: of each of its parts, those that may be left out among them.
        dataset: the data, where they can be trained on.
        error: the reason in one line, where they cannot be.
    """

    defects: tuple[Defects, ...]
    dataset: Dataset | None
    error: str = ""


def check_data(settings: DataSettings, model: str = "") -> CheckedData:
    """Look at all of a data set, and load it as training with `model` would.

    Raises:
        DataError: it is not there, or cannot be read at all.
    """
    check_sources(settings.name, settings.path)
    own = own_data(settings.name)
    kind = None if own is None else folder_kind(own.path) if own.kind == "folder" else own.kind
    look = {"table": _table, "images": _images}.get(kind or "")
    defects = tuple(_looked(look, settings, own, str(kind))) if look is not None and own is not None else ()
    try:
        return CheckedData(defects, load_dataset(settings, model))
    except DataError as error:
        return CheckedData(defects, None, str(error))


_Look = Callable[[DataSettings, OwnData], Iterator[Defects]]


def _looked(look: _Look, settings: DataSettings, own: OwnData, kind: str) -> Iterator[Defects]:
    try:
        yield from (each for each in look(settings, own) if each)
    except ImportError:
        raise missing_package(own.path, kind) from None


def _table(settings: DataSettings, own: OwnData) -> Iterator[Defects]:
    from taihu.worker.data.own.tables.table import table_defects  # noqa: PLC0415 - an extra

    yield from table_defects(settings, own)


def _images(settings: DataSettings, own: OwnData) -> Iterator[Defects]:
    from taihu.worker.data.own.images.image_folder import ImageFolder  # noqa: PLC0415 - an extra
    from taihu.worker.data.own.images.image_survey import survey  # noqa: PLC0415

    defects = Defects(f"data {settings.name}", "image")
    survey(ImageFolder.of(own.path).files, settings.size, defects, decode_all=True)
    yield defects
