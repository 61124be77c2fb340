"""One picture in a file as a viewer shows it: turned, its transparent parts white, of 8 bits."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from taihu.worker.data.base.defects import Fault
from taihu.worker.data.base.depth import Depth, DepthError, Kind, Values, whole_range
from taihu.worker.data.own.images.bad_image import BadImageError

Pixels = NDArray[np.uint8]
T = TypeVar("T")
# Which pixels are looked at: none, those of more than 8 bits, or all.
Decode = Literal["none", "deep", "all"]
_GREY: Final = frozenset({"1", "L", "LA", "La"})
_DEEP: Final[MappingProxyType[str, Kind]] = MappingProxyType(
    {
        **dict.fromkeys(("I;16", "I;16B", "I;16L", "I;16N"), "16-bit pixels"),
        "I": "32-bit pixels",
        "F": "floating-point pixels",
    }
)
# Pillow brings their samples to 16 bits, unless they have 16 already, in one of its modes or another.
_BROUGHT_TO_16_BITS: Final = frozenset({"PPM", "JPEG2000"})
# In the words of decoders, so that truncated files are one kind of defect.
_NUMBERS: Final = re.compile(r" \([0-9]+ bytes not processed\)")
_ORIENTATION: Final = 0x0112
_TURNS: Final = MappingProxyType(
    {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
)
_ON_THE_SIDE: Final = frozenset({5, 6, 7, 8})
_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC = 256, 257, 258, 262
# Photographs of several moments or eyes; every viewer shows the first.
_MANY_PICTURES: Final = frozenset({"MPO"})

# Pillow warns of damaged metadata, which nothing here depends on, and of pictures half as large as it refuses.
warnings.filterwarnings("ignore", module=r"PIL\..*")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


@dataclass(frozen=True)
class Look:
    """Facts of a picture.

    Attributes:
        size: height and width as it is shown.
        is_grey: whether it has no colours.
        is_moving: whether more frames follow the one that is read.
        values: of pixels whose file does not say which is white; None where it does, or they were not read.
        upper_bits: the greatest value of the upper 8 bits of 16-bit colours; None where they were not read, or it has
            others.
    """

    size: tuple[int, int]
    is_grey: bool
    is_moving: bool
    values: Values | None = None
    upper_bits: int | None = None


def read_image(path: Path, channels: int, size: tuple[int, int] | None = None, depth: Depth | None = None) -> Pixels:
    """The image in a file as (height, width, channels), grey with 1 channel, red, green and blue with 3.

    It is turned as its orientation says, and then resized to `size` (height, width), bilinear, where that is given.
    What is transparent becomes white. `depth` is the range of pixels of more than 8 bits, where the file tells none.

    Raises:
        BadImageError: it cannot be decoded, or its pixels are outside of the range.
    """
    return _opened(path, lambda image: _decoded(image, channels, size, depth))


def look_at(path: Path, decode: Decode) -> Look:
    """Facts of the image in a file by its header, and by its pixels where these are decoded too.

    Raises:
        BadImageError: it is no image, or, where its pixels are read, cannot be decoded.
    """
    return _opened(path, lambda image: _described(image, decode))


def _opened(path: Path, use: Callable[[Image.Image], T]) -> T:
    try:
        # Pillow would map files that it opens itself, and mixes up height and width of TIFF on the side then.
        with path.open("rb") as file, Image.open(file) as image:
            return use(image)
    except UnidentifiedImageError:
        cause = "no image that Pillow knows, or damaged" if path.stat().st_size else "it is empty"
    except DepthError as error:
        raise BadImageError(path, Fault(str(error), error.remedy)) from None
    except OSError as error:
        cause = error.strerror or _NUMBERS.sub("", str(error))
    except Exception as error:  # decoders raise whatever they like at a damaged file
        cause = str(error) or type(error).__name__
    raise BadImageError(path, Fault(f"cannot be read ({' '.join(cause.split())})", "replace or delete it")) from None


def _described(image: Image.Image, decode: Decode) -> Look:
    # In this order: what is told by the header is gone once pixels are read, which some of it needs.
    deep_colours, raw_mode = _has_deep_colours(image), _raw_mode(image)
    is_moving = image.format not in _MANY_PICTURES and bool(getattr(image, "is_animated", False))
    width, height = image.size
    if isinstance(image, TiffImageFile):
        # As they lie in the file; Pillow may have turned them already.
        width, height = image.tag_v2[_WIDTH], image.tag_v2[_HEIGHT]
    size = (width, height) if _orientation(image) in _ON_THE_SIDE else (height, width)
    look = Look(size, _is_grey(image, raw_mode), is_moving)
    if decode != "all" and not (decode == "deep" and (deep_colours or image.mode in _DEEP)):
        return look
    image.load()
    if deep_colours:
        return replace(look, upper_bits=int(np.asarray(image)[..., :3].max()))
    if image.mode not in _DEEP or _told_depth(image, raw_mode) is not None:
        return look
    return replace(look, values=Values.of(_kind(image), np.asarray(image)))


def _is_grey(image: Image.Image, raw_mode: str) -> bool:
    # 16-bit grey with transparency comes as colours.
    if image.mode in _GREY or image.mode in _DEEP or raw_mode.startswith("LA;"):
        return True
    if image.mode not in {"P", "PA"}:
        return False
    colours = np.array(image.getpalette("RGB") or [0, 0, 0]).reshape(-1, 3)
    return bool((colours == colours[:, :1]).all())


def _has_deep_colours(image: Image.Image) -> bool:
    """Whether samples of 16 bits lie in the file of which Pillow reads the upper 8; told before they are read."""
    return ";16" in _raw_mode(image) and image.mode not in _DEEP


def _raw_mode(image: Image.Image) -> str:
    """Pillow's word for samples as they lie in the file."""
    if not isinstance(image, ImageFile.ImageFile) or not image.tile:
        return ""
    arguments: Any = image.tile[0].args
    first = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return first if isinstance(first, str) else ""


def _orientation(image: Image.Image) -> int:
    """The orientation from 1 to 8, 1 where its metadata are damaged or say none: so viewers do."""
    if isinstance(image, PngImageFile):
        image.load()  # metadata may lie behind the pixels
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # parsers of metadata raise whatever they like
        return 1


def _decoded(image: Image.Image, channels: int, size: tuple[int, int] | None, depth: Depth | None) -> Pixels:
    mode = "L" if channels == 1 else "RGB"
    deep_colours, raw_mode = _has_deep_colours(image), _raw_mode(image)
    if size is not None:
        # JPEG files are decoded at a fraction of their size where that is enough.
        image.draft(mode, (max(size), max(size)))
    image.load()
    # Pillow turns TIFF itself while it loads, and forgets the orientation then.
    turn = _TURNS.get(_orientation(image))
    if deep_colours and "transparency" in image.info:
        raise DepthError("16-bit colours of which one is transparent", "save it with 8 bits")
    shown = _shallow(image, _told_depth(image, raw_mode) or depth) if image.mode in _DEEP else image
    if shown.has_transparency_data:
        shown = _on_white(shown)
    elif shown.mode not in {"1", "L", "RGB"}:
        shown = shown.convert("RGB")
    shown = shown.convert(mode)
    if turn is not None:
        shown = shown.transpose(turn)
    if size is not None:
        shown = shown.resize(size[::-1], Image.Resampling.BILINEAR)
    pixels: Pixels = np.asarray(shown, np.uint8)
    return pixels.reshape(*pixels.shape[:2], channels)


def _on_white(image: Image.Image) -> Image.Image:
    straight = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
    if straight.getchannel("A").getextrema() == (255, 255):
        return straight.convert("RGB")
    return Image.alpha_composite(Image.new("RGBA", straight.size, "white"), straight).convert("RGB")


def _shallow(image: Image.Image, depth: Depth | None) -> Image.Image:
    """An image of 8 bits from one of more."""
    kind, values = _kind(image), np.asarray(image)
    known = depth or whole_range(kind)
    if known.kind != kind:
        raise DepthError(f"{kind}, the others have {known.kind}", "bring all of them to one kind")
    pixels = known.shown(values)
    if isinstance(image, TiffImageFile) and image.tag_v2.get(_PHOTOMETRIC) == 0:
        pixels = 255 - pixels
    transparent = image.info.get("transparency")
    if transparent is not None:
        pixels = np.where(values == transparent, np.uint8(255), pixels)
    return Image.fromarray(pixels)


def _kind(image: Image.Image) -> Kind:
    is_16_bits = image.format in _BROUGHT_TO_16_BITS and image.mode != "F"
    return "16-bit pixels" if is_16_bits else _DEEP[image.mode]


def _told_depth(image: Image.Image, raw_mode: str) -> Depth | None:
    """The range of pixels of more than 8 bits, where the file itself tells it.

    A file of 16 bits tells nothing: fewer may be used.
    """
    if image.format in _BROUGHT_TO_16_BITS and image.mode != "F" and raw_mode != "I;16B":
        return Depth("16-bit pixels", 0xFFFF)
    if isinstance(image, TiffImageFile) and image.tag_v2.get(_BITS) == (12,):
        return Depth("16-bit pixels", 0xFFF)
    return None
