"""The tables of docs/security.md, made of what was measured and tried."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from benchmarks.exchange import tls
from benchmarks.inputs import refusals
from benchmarks.recovery.secured import Ended, complaints, table

CERTIFICATES = ("--set=security.ca=ca.pem",)


def test_the_ways_take_turns_and_their_medians_are_compared() -> None:
    """Under TLS 4, by gRPC 2 and by auto 1, but for one round of each start that somebody disturbed."""
    starts: list[str] = []

    def measure(model: str, size: tuple[int, int], rate: str, rounds: int, extra: list[str]) -> dict[str, Any]:
        assert (model, size, rate) == ("resnet50", (1, 3), "10gbit")
        name = "tls" if set(CERTIFICATES) <= set(extra) else extra[0].rpartition("=")[2]
        starts.append(name)
        seconds = {"tls": 4.0, "grpc": 2.0, "auto": 1.0}[name]
        return {
            "all_seconds": {"own": [seconds] * (rounds - 1) + [100.0]},
            "path": "tcp" if name == "auto" else "grpc",
        }

    with patch("benchmarks.exchange.exchange.measure", measure):
        row = tls.compare("10gbit", 5, 3, CERTIFICATES)
    # Each is the first, the second and the third one of a start.
    assert starts == ["tls", "grpc", "auto", "grpc", "auto", "tls", "auto", "tls", "grpc"]
    assert tls.table([row]).splitlines()[-1] == ("| 10gbit | 4.000 | gRPC | 2.000 | 1.000 | direct | 2.00 | 4.00 |")


def test_attempts_are_read_from_the_report_of_their_test() -> None:
    report = """<testsuites><testsuite><testcase><properties>
        <property name="no certificate" value="UNAVAILABLE handshake"/>
        <property name="an observer pushes" value="PERMISSION_DENIED role"/>
        <property name="plain text" value="UNAVAILABLE handshake"/>
    </properties></testcase></testsuite></testsuites>"""
    assert refusals.table(refusals.attempts_in(report)).splitlines()[2:] == [
        "| TLS | UNAVAILABLE | no certificate; plain text |",
        "| `role` | PERMISSION_DENIED | an observer pushes |",
    ]


def test_runs_under_tls_are_held_to_the_hash_of_one_machine() -> None:
    """Whatever carried their values: connections beside gRPC are under TLS as well."""
    runs = {"here": Ended("a", "tcp"), "hosts": Ended("a", "grpc"), "pods": Ended("a", "tcp")}
    assert not list(complaints(runs))
    assert table(runs).splitlines()[2:] == [
        "| here | `tcp` | `a` |",
        "| hosts | `grpc` | `a` |",
        "| pods | `tcp` | `a` |",
    ]
    assert list(complaints({**runs, "pods": Ended("b", "grpc")})) == ["the hashes differ"]
