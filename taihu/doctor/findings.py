"""Findings: something that would make a run fail or slow, or is worth knowing, each with its remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import IntEnum


class Severity(IntEnum):
    """The consequence of a finding for a run, the worst first."""

    FAILS = 0
    SLOWS = 1
    NOTE = 2

    @property
    def label(self) -> str:
        """Its word in the results."""
        return self.name.lower()


@dataclass(frozen=True)
class Finding:
    """One finding.

    `check` is the subject that was looked at, one word for machines to read; `where` the machine, or the link between
    two; `text` what was expected and seen, and `remedy` what helps.
    """

    severity: Severity
    check: str
    where: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity.label}: {self.where}: {self.text}; {self.remedy}"

    def to_json(self) -> dict[str, str]:
        """The row of the results."""
        return {**asdict(self), "severity": self.severity.label}


def fails(check: str, where: str, text: str, remedy: str) -> Finding:
    """A finding by which a run would fail."""
    return Finding(Severity.FAILS, check, where, text, remedy)


def slows(check: str, where: str, text: str, remedy: str) -> Finding:
    """A finding by which a run would be slow."""
    return Finding(Severity.SLOWS, check, where, text, remedy)


def notes(check: str, where: str, text: str, remedy: str) -> Finding:
    """A finding that is worth knowing."""
    return Finding(Severity.NOTE, check, where, text, remedy)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the order of their severity, equal ones once, and otherwise as they came."""
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.severity)


def would_fail(findings: Iterable[Finding]) -> bool:
    """Whether a run would fail by one of them."""
    return any(finding.severity is Severity.FAILS for finding in findings)
