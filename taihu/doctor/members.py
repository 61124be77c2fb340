"""Findings about machines that are not alike. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from taihu.core.base.words import listed
from taihu.doctor.facts import MachineFacts
from taihu.doctor.findings import Finding, fails, notes

_COMPUTES = ("numpy", "numba", "llvmlite")


def check_alike(machines: Mapping[str, MachineFacts]) -> Iterator[Finding]:
    """Versions and processors of all machines against those of the first one.

    Another taihu may speak otherwise; another library that computes, or a processor with other instructions, may
    round otherwise; another Python, gRPC or protobuf is worth knowing.
    """
    (first, own), *others = machines.items()
    for where, facts in others:
        for package in sorted(own.versions.keys() | facts.versions.keys()):
            here, there = own.versions.get(package, "none"), facts.versions.get(package, "none")
            if here != there:
                yield _other_version(package, where, there, first, here)
        lacking, more = sorted(own.features - facts.features), sorted(facts.features - own.features)
        if lacking or more:
            said = [f"has not {listed(lacking)}"] * bool(lacking) + [f"has {listed(more)} besides"] * bool(more)
            yield notes(
                "processor",
                where,
                f"its processor {listed(said)}: the same run may round otherwise than on {first}",
                "take equal machines where results have to be the same to the bit",
            )


def _other_version(package: str, where: str, there: str, first: str, here: str) -> Finding:
    text = f"{package} {there}, {first} has {here}"
    remedy = f"pip install {package}=={here} there" if package != "python" else f"install Python {here} there"
    if package == "taihu":
        return fails("versions", where, f"{text}: messages may not be understood", remedy)
    if package in _COMPUTES:
        return notes("versions", where, f"{text}: the same run may round otherwise", remedy)
    return notes("versions", where, text, remedy)
