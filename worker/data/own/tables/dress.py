"""Numbers and dates as people and programs write them: thousands, decimal commas, percent, currencies, ISO dates.

Texts are read one by one, without what surrounds them. `decimal` is the sign that stands before decimals, "." or ",";
the other one may stand between thousands, as a blank and an apostrophe may.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Final, Literal

Decimal = Literal[".", ","]

MISSING_MARKS: Final = frozenset(
    (
        "", "?", "-", "--", "---", "\u2013", "\u2014", ".", "..", "...", "*", "not available", "no data", "missing",
        "unknown", "na", "n/a", "n.a.", "n.a", "nan", "-nan", "<na>", "null", "(null)", "nil", "none", "(none)",
        "1.#qnan", "-1.#ind", "#n/a", "#n/a n/a", "#na", "#div/0!", "#ref!", "#value!", "#num!", "#name?",
        "#null!", "\\n",
    )
)  # fmt: skip
"""Texts, in lower case, that stand in the place of a number that is missing."""

# A minus sign, blanks that do not break, and a typographic apostrophe.
_SIGNS: Final = str.maketrans({"\u2212": "-", "\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'"})
_MONEY: Final = r"(?:[$€£¥₹₩₽₺]|US\$|R\$|kr|zł|EUR|USD|GBP|CHF|JPY|CNY|RMB|INR|CAD|AUD|SEK|NOK|DKK|PLN|BRL)"
_DRESSED: Final = re.compile(
    rf"(?P<sign>[+-]?)\s*(?P<before>{_MONEY})?\s*(?P<inner>[+-]?)(?P<body>[0-9.,][0-9., '_]*(?:[eE][+-]?[0-9]+)?)"
    rf"\s*(?P<after>%|{_MONEY})?"
)
_IN_BRACKETS: Final = re.compile(r"\((?P<inside>[^()+-]+)\)(?P<after>\s*%)?")
_BEGINS_AS_NUMBER: Final = re.compile(r"[^\w\s]*\s*\d[\d.,' ]*")
_HEXADECIMAL: Final = re.compile(r"0[xX][0-9a-fA-F]+")
_WORDS: Final = {"inf": math.inf, "infinity": math.inf}
_DATE: Final = re.compile(
    r"([0-9]{4})([-/])([0-9]{1,2})\2([0-9]{1,2})"
    r"(?:[T ]+([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?\s*(Z|UTC|[+-][0-9]{2}:?(?:[0-9]{2})?)?)?"
)


@dataclass(frozen=True)
class Number:
    """A number; `whole` where it is written without decimals, `unit` is % or a currency, or nothing."""

    value: float
    whole: bool
    unit: str = ""


@cache
def _body(decimal: Decimal) -> re.Pattern[str]:
    point, thousand = (r"\.", ",") if decimal == "." else (",", r"\.")
    groups = rf"[1-9][0-9]{{0,2}}(?P<mark>[{thousand} '_])[0-9]{{3}}(?:(?P=mark)[0-9]{{3}})*"
    return re.compile(
        rf"(?:(?P<plain>[0-9]+)|(?P<grouped>{groups}))?(?P<decimals>{point}[0-9]*)?(?P<power>[eE][+-]?[0-9]+)?"
    )


def parse_number(text: str, decimal: Decimal) -> Number | None:
    """The number that a text is, None where it is none; 5 % is 0.05, and (5) is -5 as in accounts."""
    text = text.translate(_SIGNS).strip()
    negative = False
    if inside := _IN_BRACKETS.fullmatch(text):
        text, negative = inside["inside"].strip() + (inside["after"] or ""), True
    if text.lower().lstrip("+-") in _WORDS:
        return Number(-math.inf if text.startswith("-") else math.inf, whole=False)
    dressed = _DRESSED.fullmatch(text)
    if dressed is None or (dressed["sign"] and dressed["inner"]) or (dressed["before"] and dressed["after"]):
        return None
    body = _body(decimal).fullmatch(dressed["body"].strip())
    if body is None:
        return None
    digits = body["plain"] or re.sub(r"[., '_]", "", body["grouped"] or "")
    decimals = (body["decimals"] or "")[1:]
    if not digits and not decimals:
        return None
    # Read in one go: a sum of parts would be rounded twice.
    percent = dressed["after"] == "%"
    power = int((body["power"] or "e0")[1:]) - (2 if percent else 0)
    value = float(f"{digits or 0}.{decimals or 0}e{power}")
    if negative or "-" in (dressed["sign"], dressed["inner"]):
        value = -value
    whole = body["decimals"] is None and body["power"] is None and not percent
    return Number(value, whole, dressed["before"] or dressed["after"] or "")


def proven(texts: Iterable[str]) -> frozenset[Decimal]:
    """The signs before decimals that are proven by one of the texts: a number by one of them alone."""
    found: set[Decimal] = set()
    for text in texts:
        dot, comma = parse_number(text, "."), parse_number(text, ",")
        if (dot is None) != (comma is None):
            found.add("," if dot is None else ".")
            if len(found) == 2:
                break
    return frozenset(found)


def is_ambiguous(text: str, *, by_point: bool = False) -> bool:
    """Whether a text is one number with decimals after a comma, and another without; with `by_point` after either.

    A point alone stands before decimals wherever programs write.
    """
    if "," not in text and not by_point:
        return False
    dot, comma = parse_number(text, "."), parse_number(text, ",")
    return dot is not None and comma is not None and dot.value != comma.value


def seconds_of(text: str) -> float | None:
    """Seconds since 1970 of `2020-01-31`, perhaps with a time and a zone, else in UTC; None where it is no date."""
    found = _DATE.fullmatch(text.strip())
    if found is None:
        return None
    year, _, month, day, hour, minute, second, fraction, zone = found.groups()
    offset = "+00:00" if zone in {None, "Z", "UTC"} else zone
    try:
        moment = datetime.fromisoformat(
            f"{year}-{month:0>2}-{day:0>2}T{hour or 0:0>2}:{minute or '00'}:{second or '00'}{offset}"
        )
    except ValueError:
        return None
    whole = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    return whole + (float(f"0.{fraction}") if fraction else 0.0)


def looks_odd(texts: Iterable[str]) -> str | None:
    """One of more than ten texts that all look like numbers, dates or measures in a form that is not read.

    They begin with a digit, and have more digits than others, one unit, or are hexadecimal.
    """
    seen = sorted(texts)
    found = [_BEGINS_AS_NUMBER.match(text) for text in seen]
    if len(seen) <= 10 or not all(found):
        return None
    units = {text[match.end() :].strip() for text, match in zip(seen, found, strict=True) if match is not None}
    digits = sum(each.isdigit() for text in seen for each in text)
    mostly = 2 * digits >= sum(len(text.replace(" ", "")) for text in seen)
    return seen[0] if mostly or len(units) == 1 or all(map(_HEXADECIMAL.fullmatch, seen)) else None
