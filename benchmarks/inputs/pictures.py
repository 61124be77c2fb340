"""Odd pictures, drawn at random: each way to write one, with the pixels that a viewer shows of it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

__all__ = ["TURNS", "WAYS", "Way", "shown_by_pillow"]

Pixels = NDArray[Any]
Write = Callable[[np.random.Generator, Pixels, int, Path], None]

TURNS: Final[Mapping[int, Callable[[Pixels], Pixels]]] = MappingProxyType(
    {
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.swapaxes(0, 1),
        6: lambda x: x[::-1].swapaxes(0, 1),
        7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
        8: lambda x: x.swapaxes(0, 1)[::-1],
    }
)


@dataclass(frozen=True)
class Way:
    """A way to write a picture (height, width, 3 or 4) of bytes.

    Attributes:
        write: with an orientation, to a path.
        endings: of names that such files have.
        grey: whether its colours are lost: what is shown is its first channel.
        exact: whether what is shown is known from what was written, without reading it.
        turns: whether it can say an orientation.
        alpha: whether the fourth channel is written.
        refused: whether it cannot be shown as bytes, and has to be refused.
        tolerance: the greatest difference to what Pillow reads.
    """

    write: Write
    endings: tuple[str, ...]
    grey: bool = False
    exact: bool = True
    turns: bool = True
    alpha: bool = False
    refused: bool = False
    tolerance: int = 1


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "maker"
    return exif


def _saved(image: Callable[[Pixels], Image.Image], kind: str, *, exif: bool = True, **options: Any) -> Write:
    def write(rng: np.random.Generator, pixels: Pixels, orientation: int, path: Path) -> None:
        drawn = {key: rng.choice(each) if isinstance(each, list) else each for key, each in options.items()}
        drawn = {key: each.item() if isinstance(each, np.generic) else each for key, each in drawn.items()}
        if kind == "TIFF":
            drawn["tiffinfo"] = {0x0112: orientation, **drawn.get("tiffinfo", {})}
        elif exif and orientation > 1:
            drawn["exif"] = _exif(orientation)
        image(pixels).save(path, kind, **{key: each for key, each in drawn.items() if each is not None})

    return write


def _of(mode: str) -> Callable[[Pixels], Image.Image]:
    return lambda pixels: Image.fromarray(np.ascontiguousarray(pixels[..., :3])).convert(mode)


def _grey(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0]))


def _grey_alpha(pixels: Pixels) -> Image.Image:
    return Image.merge("LA", [Image.fromarray(np.ascontiguousarray(pixels[..., each])) for each in (0, 3)])


def _colours_alpha(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels))


def _black_white(pixels: Pixels) -> Image.Image:
    return Image.fromarray(pixels[..., 0] >= 128)


def _deep(make: Callable[[Pixels], Pixels]) -> Callable[[Pixels], Image.Image]:
    return lambda pixels: Image.fromarray(np.ascontiguousarray(make(pixels[..., 0])))


def _bits(bits: int, dtype: str = "<u2") -> Callable[[Pixels], Image.Image]:
    """Values of so many bits, of which the upper 8 are the picture's."""
    return _deep(lambda grey: grey.astype(dtype) << (bits - 8))


def _palette_clear(pixels: Pixels) -> Image.Image:
    image = _of("RGB")(pixels).quantize(16)
    image.info["transparency"] = 3
    return image


def _frames(pixels: Pixels) -> Image.Image:
    return _of("RGB")(pixels)


def _moving(kind: str, **options: Any) -> Write:
    def write(rng: np.random.Generator, pixels: Pixels, orientation: int, path: Path) -> None:
        others = [_frames(255 - pixels), _frames(pixels // 2)]
        _frames(pixels).save(path, kind, save_all=True, append_images=others, **options)

    return write


def _deep_png(colour: int) -> Write:
    """16-bit PNG of a type of colours that Pillow reads and cannot write."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    def write(rng: np.random.Generator, pixels: Pixels, orientation: int, path: Path) -> None:
        channels = {2: [0, 1, 2], 4: [0, 3], 6: [0, 1, 2, 3]}[colour]
        low = rng.integers(0, 256, (*pixels.shape[:2], len(channels)), np.uint16)
        deep = (pixels[..., channels].astype(np.uint16) << 8 | low).astype(">u2")
        rows = b"".join(b"\0" + row.tobytes() for row in deep)
        header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, colour, 0, 0, 0)
        late = chunk(b"eXIf", _exif(orientation).tobytes()[6:])
        content = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), late, chunk(b"IEND", b"")]
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(content))

    return write


def _twelve_bit_tiff(rng: np.random.Generator, pixels: Pixels, orientation: int, path: Path) -> None:
    """Two values in three bytes, which a row of an odd width ends with a half of."""
    height, width = pixels.shape[:2]
    values = pixels[..., 0].astype(np.uint32) << 4 | rng.integers(0, 16, (height, width), np.uint32)
    even = np.pad(values, ((0, 0), (0, width % 2)))
    packed = np.stack([even[:, ::2] >> 4, (even[:, ::2] & 15) << 4 | even[:, 1::2] >> 8, even[:, 1::2] & 255], axis=2)
    rows = packed.astype(np.uint8).reshape(height, -1)[:, : (width * 12 + 7) // 8].tobytes()
    tags = [(256, width), (257, height), (258, 12), (259, 1), (262, 1), (273, 8), (274, orientation), (277, 1)]
    tags += [(278, height), (279, len(rows))]
    table = b"".join(struct.pack("<HHII", tag, 4 if tag in {273, 279} else 3, 1, value) for tag, value in tags)
    ifd = struct.pack("<H", len(tags)) + table + struct.pack("<I", 0)
    path.write_bytes(b"II*\0" + struct.pack("<I", 8 + len(rows)) + rows + ifd)


def _broken_exif(rng: np.random.Generator, pixels: Pixels, orientation: int, path: Path) -> None:
    _of("RGB")(pixels).save(path, "JPEG", quality=95, exif=b"Exif\0\0" + rng.bytes(30))


_JPEG: Final = (".jpg", ".jpeg", ".jpe", ".jfif", ".JPG", ".Jpeg")
_TIFF: Final = (".tif", ".tiff", ".TIF")
_PNG: Final = (".png", ".PNG", "")
_QUALITY: Final[Mapping[str, Any]] = {"quality": [60, 95], "progressive": [False, True], "subsampling": [0, 2]}
_PACKED: Final = [None, "tiff_lzw", "tiff_deflate", "packbits"]

WAYS: Final[Mapping[str, Way]] = MappingProxyType(
    {
        "jpeg grey": Way(_saved(_grey, "JPEG", quality=[60, 95]), _JPEG, grey=True, exact=False),
        "jpeg": Way(_saved(_of("RGB"), "JPEG", **_QUALITY), _JPEG, exact=False),
        "jpeg cmyk": Way(_saved(_of("CMYK"), "JPEG", quality=95), _JPEG, exact=False),
        "jpeg, broken exif": Way(_broken_exif, _JPEG, exact=False, turns=False),
        "png black and white": Way(_saved(_black_white, "PNG"), _PNG, grey=True, exact=False),
        "png grey": Way(_saved(_grey, "PNG", optimize=[False, True]), _PNG, grey=True),
        "png grey, alpha": Way(_saved(_grey_alpha, "PNG"), _PNG, grey=True, alpha=True),
        "png grey, one clear": Way(_saved(_grey, "PNG", transparency=77), _PNG, grey=True, exact=False),
        "png palette": Way(_saved(lambda x: _of("RGB")(x).quantize(200), "PNG"), _PNG, exact=False),
        "png grey palette": Way(_saved(lambda x: _grey(x).convert("P"), "PNG"), _PNG, grey=True),
        "png palette, one clear": Way(_saved(_palette_clear, "PNG"), _PNG, exact=False),
        "png": Way(_saved(_of("RGB"), "PNG", compress_level=[0, 9]), _PNG),
        "png, alpha": Way(_saved(_colours_alpha, "PNG"), _PNG, alpha=True),
        "png of 16 bits": Way(_saved(_bits(16), "PNG"), _PNG, grey=True),
        "png of 12 bits in 16": Way(_saved(_bits(12), "PNG"), _PNG, grey=True),
        "png of 8 bits in 16": Way(_saved(_bits(8), "PNG"), _PNG, grey=True),
        "png colours of 16 bits": Way(_deep_png(2), _PNG),
        "png grey, alpha of 16 bits": Way(_deep_png(4), _PNG, grey=True, alpha=True),
        "png colours, alpha of 16 bits": Way(_deep_png(6), _PNG, alpha=True),
        "tiff black and white": Way(
            _saved(_black_white, "TIFF", compression=[None, "group4", "packbits"]), _TIFF, grey=True, exact=False
        ),
        "tiff grey": Way(_saved(_grey, "TIFF", compression=_PACKED), _TIFF, grey=True),
        "tiff grey, alpha": Way(_saved(_grey_alpha, "TIFF", compression=_PACKED), _TIFF, grey=True, alpha=True),
        "tiff palette": Way(_saved(lambda x: _of("RGB")(x).quantize(200), "TIFF"), _TIFF, exact=False),
        "tiff": Way(_saved(_of("RGB"), "TIFF", compression=_PACKED), _TIFF),
        "tiff, jpeg": Way(_saved(_of("RGB"), "TIFF", compression="jpeg"), _TIFF, exact=False),
        "tiff, alpha": Way(_saved(_colours_alpha, "TIFF", compression=_PACKED), _TIFF, alpha=True),
        "tiff cmyk": Way(_saved(_of("CMYK"), "TIFF"), _TIFF, exact=False),
        "tiff ycbcr": Way(_saved(_of("YCbCr"), "TIFF"), _TIFF, exact=False),
        "tiff lab": Way(_saved(_of("LAB"), "TIFF"), _TIFF, exact=False),
        "tiff of 16 bits": Way(_saved(_bits(16), "TIFF", compression=_PACKED), _TIFF, grey=True),
        "tiff of 16 bits, big-endian": Way(_saved(_bits(16, ">u2"), "TIFF"), _TIFF, grey=True),
        "tiff of 14 bits in 16": Way(_saved(_bits(14), "TIFF", compression=_PACKED), _TIFF, grey=True),
        "tiff of 12 bits": Way(_twelve_bit_tiff, _TIFF, grey=True),
        "tiff of 32 bits": Way(_saved(_bits(8, "<i4"), "TIFF", compression=_PACKED), _TIFF, grey=True),
        "tiff of 12 bits in 32": Way(_saved(_bits(12, "<i4"), "TIFF"), _TIFF, grey=True),
        "tiff of 0 to 1": Way(
            _saved(_deep(lambda x: x.astype(np.float32) / 255), "TIFF", compression=_PACKED), _TIFF, grey=True
        ),
        "tiff of floats to 255": Way(_saved(_deep(lambda x: x.astype(np.float32)), "TIFF"), _TIFF, grey=True),
        "tiff of -1 to 1": Way(
            _saved(_deep(lambda x: x.astype(np.float32) / 127.5 - 1), "TIFF"), _TIFF, grey=True, refused=True
        ),
        "tiff of negative numbers": Way(
            _saved(_deep(lambda x: x.astype(np.int32) * 16 - 1024), "TIFF"), _TIFF, grey=True, refused=True
        ),
        "tiff, pages": Way(_moving("TIFF"), _TIFF, turns=False),
        "webp": Way(_saved(_of("RGB"), "WEBP", lossless=True), (".webp",)),
        "webp, alpha": Way(_saved(_colours_alpha, "WEBP", lossless=True, exact=True), (".webp",), alpha=True),
        "webp, lossy": Way(_saved(_of("RGB"), "WEBP", quality=70), (".webp", ".WEBP"), exact=False),
        "webp, moving": Way(_moving("WEBP", lossless=True), (".webp",), turns=False),
        "gif": Way(
            _saved(lambda x: _of("RGB")(x).quantize(64), "GIF", exif=False), (".gif",), exact=False, turns=False
        ),
        "gif grey": Way(_saved(_grey, "GIF", exif=False), (".gif", ".GIF"), grey=True, turns=False),
        "gif, one clear": Way(_saved(_palette_clear, "GIF", exif=False), (".gif",), exact=False, turns=False),
        "gif, moving": Way(_moving("GIF"), (".gif",), exact=False, turns=False),
        "bmp grey": Way(_saved(_grey, "BMP", exif=False), (".bmp", ".BMP", ""), grey=True, turns=False),
        "bmp": Way(_saved(_of("RGB"), "BMP", exif=False), (".bmp", ".dib"), turns=False),
        "pbm": Way(_saved(_black_white, "PPM", exif=False), (".pbm",), grey=True, exact=False, turns=False),
        "pgm": Way(_saved(_grey, "PPM", exif=False), (".pgm",), grey=True, turns=False),
        "pgm of 16 bits": Way(_saved(_bits(16, "<i4"), "PPM", exif=False), (".pgm",), grey=True, turns=False),
        "ppm": Way(_saved(_of("RGB"), "PPM", exif=False), (".ppm", ".PPM"), turns=False),
        "tga": Way(_saved(_of("RGB"), "TGA", exif=False, rle=[False, True]), (".tga",), turns=False),
        "tga, alpha": Way(_saved(_colours_alpha, "TGA", exif=False), (".tga",), turns=False, alpha=True),
        "pcx": Way(_saved(_of("RGB"), "PCX", exif=False), (".pcx",), turns=False),
        "sgi": Way(_saved(_of("RGB"), "SGI", exif=False), (".sgi",), turns=False),
        "jpeg 2000": Way(_saved(_of("RGB"), "JPEG2000", exif=False, irreversible=False), (".jp2",), turns=False),
        "avif": Way(_saved(_of("RGB"), "AVIF", quality=90), (".avif",), exact=False),
    }
)


def shown_by_pillow(path: Path, way: Way, size: tuple[int, int] | None) -> Pixels:
    """The picture in a file of 8-bit pixels as Pillow reads it: turned, on white, and of `size` (height, width).

    JPEG files are read at a fraction of their size where that is enough.
    """
    mode = "L" if way.grey else "RGB"
    # Pillow would map files that it opens itself, and mixes up height and width of TIFF on the side then.
    with path.open("rb") as file, Image.open(file) as opened:
        if size is not None:
            opened.draft(mode, (max(size), max(size)))
        image: Any = ImageOps.exif_transpose(opened)
        if image.has_transparency_data:
            whole = np.asarray(image.convert("RGBA"), np.float64)
            share = whole[..., 3:] / 255
            image = Image.fromarray(np.rint(whole[..., :3] * share + 255 * (1 - share)).astype(np.uint8))
        elif image.mode == "LAB":
            image = image.convert("RGB")
        image = image.convert(mode)
        if size is not None:
            image = image.resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(image, np.float64).reshape(image.height, image.width, -1)
