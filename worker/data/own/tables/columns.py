"""Columns of a table: told whether they are numbers, dates or texts, and brought to one type each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from taihu.worker.data.base.defects import Fault
from taihu.worker.data.base.reading import Form
from taihu.worker.data.own.tables.dress import (
    MISSING_MARKS,
    Decimal,
    Number,
    is_ambiguous,
    looks_odd,
    parse_number,
    proven,
    seconds_of,
)

_SIGNS: Final[tuple[Decimal, ...]] = (".", ",")
_TRUTHS: Final = {"true": 1.0, "false": 0.0}
# A column with so many numbers among its texts, or in its rows, is one of numbers with mistakes in it.
_SHARE_OF_TEXTS: Final = 2 / 3
_SHARE_OF_ROWS: Final = 0.9
# Beyond these float64 leaves some out.
_LARGEST_WHOLE: Final = 2**53
_LEAST_GROUPED: Final = 3
_THOUSAND: Final = 1000
_MOST_SURVEYED: Final = 20_000
# Thousands behind a point, or three decimals.
_IN_GROUPS: Final = r"^[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+$"


@dataclass(frozen=True)
class Converted:
    """Values of some rows of a column: int64, float64 or texts, none of a missing one; and rows that are at fault."""

    values: Any
    faults: Sequence[tuple[Fault, NDArray[np.int64], Sequence[str]]] = ()


@dataclass(frozen=True)
class Survey:
    """The different texts of a column, and how often each is there.

    Attributes:
        name: of the column.
        counts: of some of the different ones, where there are very many, or all are plain numbers.
        plain: whether all are numbers as programs write them: 12, 1.5, 1e5.
        whole: whether all are whole ones of them.
        is_typed: whether the file says that they are texts.
        by_comma: whether commas separate columns: a point stands before decimals there.
    """

    name: str
    counts: Mapping[str, int]
    plain: bool
    whole: bool
    is_typed: bool = False
    by_comma: bool = True

    @property
    def texts(self) -> list[str]:
        """The different ones that stand for no missing number."""
        return [text for text in self.counts if text.casefold() not in MISSING_MARKS]

    @property
    def signs(self) -> frozenset[Decimal]:
        """The signs before decimals that the texts prove.

        Thousands beside hundreds are thousands where commas separate columns: `950` and `1,200`. As decimals all of
        them would have three, and none in others.
        """
        found = proven(self.texts)
        if found or not self.by_comma:
            return found
        grouped = sum(map(is_ambiguous, self.texts))
        others = [number.value for text in self.texts if "," not in text and (number := parse_number(text, "."))]
        is_counted = grouped >= _LEAST_GROUPED and others and max(map(abs, others)) < _THOUSAND
        return frozenset({"."}) if is_counted else found


def survey(chunks: Sequence[Any], name: str, *, is_typed: bool, by_comma: bool) -> Survey:
    """Look over the texts of a column, given in portions."""
    texts = pa.chunked_array([trimmed(chunk) for chunk in chunks], pa.string())
    whole = _casts(texts, pa.int64())
    plain = whole or _casts(texts, pa.float64())
    if plain:
        # One that proves that decimals stand behind a point, else one that does not, is enough.
        dotted = texts.filter(pc.match_substring(texts, "."))
        proof = dotted.filter(pc.invert(pc.match_substring_regex(dotted, _IN_GROUPS)))
        some = [*proof[:1].to_pylist(), *dotted[:1].to_pylist(), *texts.drop_null()[:1].to_pylist()]
        return Survey(name, dict.fromkeys(some, 1), plain, whole, is_typed, by_comma)
    found = pc.value_counts(texts.drop_null())
    step = -(-len(found) // _MOST_SURVEYED)
    values, counts = found.field("values")[::step].to_pylist(), found.field("counts")[::step].to_pylist()
    return Survey(name, dict(zip(values, counts, strict=True)), plain, whole, is_typed, by_comma)


def _casts(texts: Any, dtype: Any) -> bool:
    try:
        texts.cast(dtype)
    except pa.ArrowInvalid:
        return False
    return True


def decimal_of(columns: Iterable[Survey]) -> frozenset[Decimal]:
    """The signs before decimals that columns of numbers prove."""
    found: set[Decimal] = set()
    for column in columns:
        if not column.whole and (column.plain or _is_of_numbers(column)):
            found |= column.signs
    return frozenset(found)


def _is_of_numbers(column: Survey) -> bool:
    texts = column.texts
    return 2 * sum(
        parse_number(each, ".") is not None or parse_number(each, ",") is not None for each in texts
    ) > len(texts)


def own_decimal(column: Survey, known: frozenset[Decimal]) -> Decimal:
    """The sign before decimals in a column: that which it proves, else that of the file, else a point."""
    own = column.signs
    for signs in (own, known):
        if len(signs) == 1:
            return next(iter(signs))
    if own:
        count = {sign: sum(parse_number(each, sign) is not None for each in column.texts) for sign in own}
        return max(sorted(own), key=count.__getitem__)
    return "."


def column_form(column: Survey, known: frozenset[Decimal]) -> tuple[Form, Fault | None]:
    """The form of a column of texts, and what is wrong with all of it; the file proves the `known` signs."""
    texts = column.texts
    if not texts:
        return ("number" if column.counts else "whole"), None
    if column.whole:
        # Digits that a file calls texts are codes.
        return ("text" if column.is_typed else "whole"), None
    decimal = own_decimal(column, known)
    numbers = [number for each in texts if (number := parse_number(each, decimal)) is not None]
    if _prevail(column, texts, lambda text: parse_number(text, decimal) is not None, numbers):
        return _form_of_numbers(numbers), _unsure(column, known)
    if _prevail(column, texts, lambda text: text.casefold() in _TRUTHS, ()):
        return "truth", None
    if _prevail(column, texts, lambda text: seconds_of(text) is not None, ()):
        return "date", None
    return "text", _odd(column)


def _form_of_numbers(numbers: Sequence[Number]) -> Form:
    if any(number.unit == "%" for number in numbers):
        return "percent"
    return "whole" if all(number.whole for number in numbers) else "number"


def _odd(column: Survey) -> Fault | None:
    odd = looks_odd(column.texts)
    if odd is None:
        return None
    return Fault(
        f"looks like numbers, dates or measures in a form that is not read, for example {odd!r}",
        f"write numbers as 1234.5, dates as 2020-01-31, or set data.texts = ['{column.name}'] if these are texts",
        f"column {column.name}",
    )


def _unsure(column: Survey, known: frozenset[Decimal]) -> Fault | None:
    """The fault of a column whose decimals may stand behind either sign, and nothing proves which."""
    texts = (each for each in column.texts if is_ambiguous(each, by_point=not column.by_comma))
    text = next(texts, None)
    if text is None or len(known) == 1 or column.signs:
        return None
    dot, comma = (number.value if (number := parse_number(text, sign)) else 0.0 for sign in _SIGNS)
    return Fault(
        f"looks like numbers, but {text!r} may be {dot:.15g} or {comma:.15g}",
        f"set data.decimal = '.' if it is {dot:.15g}, or ',' if it is {comma:.15g}",
        f"column {column.name}",
    )


def _prevail(column: Survey, texts: Sequence[str], is_one: Callable[[str], bool], numbers: Sequence[Number]) -> bool:
    """Whether so many texts are of a kind that the others must be mistakes."""
    of_kind = [text for text in texts if is_one(text)]
    if len(of_kind) in {0, len(texts)}:
        return bool(of_kind)
    if all(number.whole for number in numbers) and any(text.startswith("0") and len(text) > 1 for text in of_kind):
        return False  # codes such as 007 and A12
    rows = sum(column.counts[text] for text in of_kind)
    all_rows = sum(column.counts[text] for text in texts)
    share = _SHARE_OF_TEXTS if all(number.whole for number in numbers) else 0.5
    return len(of_kind) > share * len(texts) or rows >= _SHARE_OF_ROWS * all_rows


def trimmed(column: Any) -> Any:
    """Texts without blanks around them; nothing where there are blanks alone."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    texts = column.cast(pa.string())
    short = pc.utf8_trim_whitespace(texts)
    blank = pc.and_(pc.equal(short, ""), pc.not_equal(texts, ""))
    short = pc.if_else(blank, pa.scalar(None, pa.string()), short)
    lines = pc.match_substring(short, "\n")
    return (
        pc.if_else(lines, pc.replace_substring_regex(short, r"\s+", " "), short) if pc.any(lines).as_py() else short
    )


def convert(column: Any, name: str, form: Form, decimal: Decimal) -> Converted:
    """Bring values of a column, of any type, to the type of its form: int64, float64 or texts."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not is_of_texts(column.type):
        return _of_type(column, name, form)
    texts = trimmed(column)
    if form == "text":
        return Converted(texts)
    if form == "whole" or (decimal == "." and form == "number"):
        try:
            return Converted(texts.cast(pa.int64() if form == "whole" else pa.float64()))
        except pa.ArrowInvalid:
            pass
    return _of_texts(texts, name, form, decimal)


def is_of_texts(dtype: Any) -> bool:
    """Whether a type of PyArrow is one of texts."""
    return any(is_one(dtype) for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _of_texts(texts: Any, name: str, form: Form, decimal: Decimal) -> Converted:
    """Texts one by one, each different one once."""
    encoded = pc.dictionary_encode(texts)
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
        encoded = encoded if isinstance(encoded, pa.DictionaryArray) else pc.dictionary_encode(texts.combine_chunks())
    different = encoded.dictionary.to_pylist()
    values = np.full(len(different) + 1, np.nan)
    wrong: dict[Fault, list[int]] = {}
    for place, text in enumerate(different):
        value, fault = _value(text, name, form, decimal)
        if fault is not None:
            wrong.setdefault(fault, []).append(place)
        elif value is not None:
            values[place] = value
    places = encoded.indices.fill_null(len(different)).to_numpy(zero_copy_only=False)
    found = values[places]
    faults = []
    for fault, of in wrong.items():
        rows = np.flatnonzero(np.isin(places, of))
        faults.append((fault, rows, [different[places[row]] for row in rows[:3]]))
    missing = np.isnan(found)
    if form == "whole" and not np.any(np.abs(found[~missing]) >= _LARGEST_WHOLE):
        whole = pa.array(np.where(missing, 0, found).astype(np.int64), mask=missing)
        return Converted(whole, faults)
    return Converted(pa.array(found, mask=missing), faults)


def _value(text: str, name: str, form: Form, decimal: Decimal) -> tuple[float | None, Fault | None]:
    """The value of a text, None of one that stands for a missing one, or what is wrong with it."""
    if text.casefold() in MISSING_MARKS:
        return None, None
    if form == "date":
        value, wrong = seconds_of(text), "is no date as 2020-01-31, unlike others"
    elif form == "truth" and text.casefold() in _TRUTHS:
        return _TRUTHS[text.casefold()], None
    else:
        number = parse_number(text, decimal)
        value, wrong = (None, "is no number, unlike others") if number is None else _in_form(number, form)
    if value is not None:
        return value, None
    remedy = f"mend it, leave it empty if it is missing, or set data.texts = ['{name}'] if the column has texts"
    return None, Fault(wrong, remedy, f"column {name}")


def _in_form(number: Number, form: Form) -> tuple[float | None, str]:
    """The value of a number where it suits the form of its column, else what is wrong with it."""
    if (number.unit == "%") is not (form == "percent") and number.value:
        return None, f"has {'a' if number.unit == '%' else 'no'} % behind it, unlike others"
    if form == "whole" and not number.value.is_integer():
        return None, "is no whole number, unlike those for training"
    return number.value, ""


def _of_type(column: Any, name: str, form: Form) -> Converted:
    """Values of a type that the file says."""
    dtype = column.type
    if form == "text" and (pa.types.is_integer(dtype) or pa.types.is_null(dtype)):
        return Converted(column.cast(pa.string()))
    values = None if form == "text" else _seconds(column) if form == "date" else column
    if values is None:
        every = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        fault = Fault(f"is of {dtype}, expected {'texts' if form == 'text' else 'dates'}", "", f"column {name}")
        return Converted(pa.nulls(len(column), pa.string() if form == "text" else pa.float64()), [(fault, every, ())])
    if pa.types.is_boolean(dtype):
        values = values.cast(pa.uint8())
    if form == "whole" and pa.types.is_integer(values.type):
        return _of_integers(values, name)
    found = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    missing = np.isnan(found)
    whole = np.where(missing, 0, found)
    if form == "whole" and not np.any(whole % 1) and not np.any(np.abs(whole) >= _LARGEST_WHOLE):
        return Converted(pa.array(whole.astype(np.int64), mask=missing))
    return Converted(pa.array(found, mask=missing))


def _of_integers(values: Any, name: str) -> Converted:
    if values.type != pa.uint64():
        return Converted(values.cast(pa.int64()))
    large = pc.greater(values, pa.scalar(np.iinfo(np.int64).max, values.type))
    places = np.flatnonzero(large.fill_null(False).to_numpy(zero_copy_only=False))
    others = pc.if_else(large, pa.scalar(None, values.type), values).cast(pa.int64())
    fault = Fault("is beyond whole numbers of 64 bits", "make it smaller", f"column {name}")
    return Converted(others, [(fault, places, ())] if len(places) else ())


def _seconds(column: Any) -> Any:
    """Seconds since 1970, or of the day, as float64; None where the type is none of time."""
    dtype = column.type
    if pa.types.is_date(dtype):
        column = column.cast(pa.timestamp("ms"))
    elif pa.types.is_time(dtype):
        column = column.cast(pa.time64("ns") if pa.types.is_time64(dtype) else pa.time32("ms"))
    elif not (pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype)):
        return None
    unit = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[column.type.unit]
    whole = column.cast(pa.int32() if pa.types.is_time32(column.type) else pa.int64())
    return pc.divide(whole.cast(pa.float64(), safe=False), unit)


def typed_form(dtype: Any) -> Form | None:
    """The form of a column by the type that its file says: None of texts, and of what can be no input."""
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    if pa.types.is_boolean(dtype):
        return "truth"
    if pa.types.is_integer(dtype) or pa.types.is_null(dtype):
        return "whole"
    if pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "number"
    is_time = pa.types.is_date(dtype) or pa.types.is_time(dtype) or pa.types.is_timestamp(dtype)
    return "date" if is_time or pa.types.is_duration(dtype) else None
