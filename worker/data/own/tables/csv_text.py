"""The text of a CSV file: unpacked by its name, decoded by its first bytes or as told; refused where it is none."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from pathlib import Path
from typing import Final

from taihu.core.base.errors import DataError
from taihu.worker.data.base.files import check_readable

_UNPACK: Final = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# First bytes, and what they say.
_OTHERS: Final = (
    (b"PK\x03\x04", "a zip file, as .xlsx files are; save the sheet as CSV"),
    (b"\xd0\xcf\x11\xe0", "an old Excel file; save the sheet as CSV"),
    (b"PAR1", "a Parquet file; name it .parquet"),
    (b"ARROW1", "an Arrow file; write it as Parquet"),
    (b"FEA1", "a Feather file; write it as Parquet"),
    (b"\x1f\x8b", "packed by gzip; name it .csv.gz"),
    (b"BZh", "packed by bzip2; name it .csv.bz2"),
    (b"\xfd7zXZ", "packed by xz; name it .csv.xz"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd; unpack it"),
    (b"%PDF", "a PDF document; write its tables as CSV"),
    (b"SQLite format 3", "an SQLite database; write its table as CSV"),
    (b"\x89HDF", "an HDF5 file; write its table as Parquet"),
    (b"\x93NUMPY", "a NumPy array; name it .npy, in a folder"),
    (b"\x89PNG", "a PNG image; give a folder of images"),
    (b"\xff\xd8\xff", "a JPEG image; give a folder of images"),
    (b"<!doctype html", "a web page; download the file itself"),
    (b"<html", "a web page; download the file itself"),
    (b"<?xml", "an XML file; write its table as CSV"),
    (b"version https://git-lfs", "what Git LFS leaves in a file's place; run git lfs pull"),
    (b"{", "JSON; write it as CSV"),
    (b"[{", "JSON; write it as CSV"),
)
_CHUNK: Final = 1 << 22


def read_csv_text(path: Path, encoding: str | None) -> bytes:
    """The file as UTF-8, without a mark at its beginning.

    Raises:
        DataError: it cannot be read, is empty or no text, or is written in another way than UTF-8 and `encoding`.
    """
    content = _unpacked(path)
    if not content.strip():
        raise DataError(f"{path}: not a readable table: it is empty; expected names of columns, and rows below them")
    mark = next(((mark, known) for mark, known in _MARKS if content.startswith(mark)), None)
    if mark is None and encoding is None:
        _check_kind(path, content)
        _check_utf8(path, content)
        return content
    if mark is not None and mark[1] == "utf-8":
        content = content[len(mark[0]) :]
        _check_utf8(path, content)
        return content
    known = mark[1] if mark is not None else encoding or "utf-8"
    try:
        text = content.removeprefix(mark[0] if mark else b"").decode(known).removeprefix("\ufeff")
    except (UnicodeError, ValueError) as error:
        raise DataError(
            f"{path}: is not written in {known}, as {'its first bytes say' if mark else 'data.encoding says'}: "
            f"{' '.join(str(error).split())}"
        ) from None
    if "\0" in text:
        raise DataError(f"{path}: not a readable table: it has zero bytes when read in {known}; give it as UTF-8")
    return text.encode()


def _unpacked(path: Path) -> bytes:
    check_readable(path, f"give the path of a file {path.suffix}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    unpack = _UNPACK.get(path.suffix.lower())
    if unpack is None:
        return content
    try:
        return unpack(content)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: not a readable table: damaged, or not packed as its name says ({error})") from None


def _check_kind(path: Path, content: bytes) -> None:
    start = content[:64].lstrip().lower()
    seen = next((said for magic, said in _OTHERS if start.startswith(magic.lower())), None)
    if seen is not None:
        raise DataError(f"{path}: not a readable table: it is {seen}")
    place = content.find(b"\0")
    if place < 0:
        return
    head = content[:4096]
    even, odd = head[::2].count(0), head[1::2].count(0)
    if max(even, odd) > len(head) // 8:
        guess = "utf-16-le" if odd > even else "utf-16-be"
        raise DataError(
            f"{path}: not a readable table: every second byte is zero, as in UTF-16 without a mark; set "
            f"data.encoding = '{guess}', or save it as UTF-8"
        )
    line = content.count(b"\n", 0, place) + 1
    raise DataError(f"{path}: not a readable table: line {line} has a zero byte; it is no text, or damaged")


def _check_utf8(path: Path, content: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(content), _CHUNK):
        chunk = content[start : start + _CHUNK]
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(chunk, final=start + _CHUNK >= len(content))
        except UnicodeDecodeError as error:
            place = start - pending + error.start
            line = content.count(b"\n", 0, place) + 1
            raise DataError(
                f"{path}: line {line} has the byte 0x{content[place]:02x}, which is no UTF-8; set data.encoding to "
                "what it is written in, for example 'cp1252' (Western European, of Excel), or save it as UTF-8"
            ) from None
    if b"\0" in content:
        line = content.count(b"\n", 0, content.find(b"\0")) + 1
        raise DataError(f"{path}: not a readable table: line {line} has a zero byte; it is no text, or damaged")
