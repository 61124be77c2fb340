"""Findings about one machine, about machines beside each other, and what a job needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.job import load_job, parse_assignments
from taihu.core.planner.groups import Group
from taihu.core.planner.memory import MemoryJob, worker_memory
from taihu.doctor.facts import MachineFacts
from taihu.doctor.findings import Finding, Severity, fails, notes, slows, worst_first, would_fail
from taihu.doctor.machines import (
    check_coordinator,
    check_disk,
    check_limits,
    check_memory,
    check_names,
    check_peer,
    check_shared_memory,
)
from taihu.doctor.members import check_alike
from taihu.doctor.needs import Needs, needs_of

NEEDS = Needs(100, 4000, 3000, 11_000, 700, False, 500)
HEALTHY = MachineFacts(
    "host1",
    {"taihu": "0.1.0", "numpy": "2.4.0", "python": "3.11.7"},
    frozenset({"avx2", "fma"}),
    ("10.0.0.1/24",),
    {"host1": ("10.0.0.1",), "host0": ("10.0.0.2",)},
    open_files=1024,
    free_memory_bytes=11_000,
    free_shared_bytes=700,
)


def all_findings(facts: MachineFacts, needs: Needs = NEEDS, *, alone: bool = False) -> list[Finding]:
    return [
        *check_limits("here", facts, needs),
        *check_memory("here", facts, needs, alone=alone),
        *check_shared_memory("here", facts, needs),
        *check_names("here", facts),
        *check_coordinator("host0:7070", "here", facts, alone=False),
        *check_alike({"there": HEALTHY, "here": facts}),
    ]


@pytest.mark.parametrize("alone", [True, False])
def test_nothing_is_found_where_everything_just_suffices(alone: bool) -> None:
    assert all_findings(HEALTHY, alone=alone) == []
    assert all_findings(replace(HEALTHY, open_files=0), alone=alone) == []


@pytest.mark.parametrize(
    ("change", "severity", "check", "words"),
    [
        ({"open_files": 99}, Severity.FAILS, "files", "ulimit -n"),
        ({"address_space_bytes": 3999}, Severity.FAILS, "memory", "ulimit -v"),
        ({"free_memory_bytes": 2999}, Severity.FAILS, "memory", "taihu plan memory"),
        ({"free_memory_bytes": 3999}, Severity.NOTE, "memory", "a server would fit"),
        ({"free_shared_bytes": 699}, Severity.SLOWS, "shared-memory", "remount"),
        ({"addresses": ()}, Severity.FAILS, "addresses", "ip addr add"),
        ({"versions": {**HEALTHY.versions, "taihu": "0.0.9"}}, Severity.FAILS, "versions", "taihu==0.1.0"),
        ({"versions": {**HEALTHY.versions, "numpy": "2.3.0"}}, Severity.NOTE, "versions", "round otherwise"),
        ({"versions": {**HEALTHY.versions, "python": "3.12.1"}}, Severity.NOTE, "versions", "Python 3.11.7"),
        ({"features": frozenset({"avx2"})}, Severity.NOTE, "processor", "has not fma"),
        ({"features": HEALTHY.features | {"avx512f"}}, Severity.NOTE, "processor", "has avx512f besides"),
    ],
)
def test_each_lack_is_one_finding(change: dict[str, object], severity: Severity, check: str, words: str) -> None:
    (finding,) = all_findings(replace(HEALTHY, **change))  # type: ignore[arg-type]
    assert (finding.severity, finding.check, finding.where) == (severity, check, "here")
    assert words in str(finding)


@given(free=st.integers(1, 20_000), alone=st.booleans())
def test_memory_fails_exactly_where_nothing_fits(free: int, alone: bool) -> None:
    found = list(check_memory("here", replace(HEALTHY, free_memory_bytes=free), NEEDS, alone=alone))
    assert would_fail(found) == (free < (11_000 if alone else 3000))


def test_a_job_that_asks_for_shared_memory_fails_without_it() -> None:
    (finding,) = check_shared_memory("here", replace(HEALTHY, free_shared_bytes=0), replace(NEEDS, must_share=True))
    assert finding.severity is Severity.FAILS


def test_a_name_of_its_own_that_is_loopback_is_worth_a_note() -> None:
    debian = replace(HEALTHY, names={"host1": ("127.0.1.1",)})
    (finding,) = check_names("here", debian)
    assert finding.severity is Severity.NOTE
    assert "127.0.1.1" in finding.remedy
    # One of several that others can reach is enough.
    assert not list(check_names("here", replace(HEALTHY, names={"host1": ("127.0.1.1", "10.0.0.1")})))


@pytest.mark.parametrize(
    ("address", "known", "words"),
    [
        ("host0:7070", ("127.0.1.1",), "127.0.1.1 there, loopback"),
        ("host0:7070", ("10.0.0.2", "::1"), "loopback"),
        ("host0:7070", (), "nobody knows the name host0"),
        ("127.0.0.1:7070", ("127.0.0.1",), "other machines cannot reach 127.0.0.1"),
        ("localhost:7070", ("127.0.0.1",), "other machines cannot reach localhost"),
        ("0.0.0.0:7070", ("0.0.0.0",), "other machines cannot reach 0.0.0.0"),  # noqa: S104
    ],
)
def test_a_coordinator_that_others_cannot_reach(address: str, known: tuple[str, ...], words: str) -> None:
    facts = replace(HEALTHY, names={address.rpartition(":")[0]: known})
    (finding,) = check_coordinator(address, "here", facts, alone=False)
    assert finding.severity is Severity.FAILS
    assert words in finding.text
    assert not list(check_coordinator(address, "here", facts, alone=True))


def test_a_peer_by_a_name_that_is_loopback_here() -> None:
    facts = replace(HEALTHY, names={"host0": ("127.0.1.1",), "127.0.0.1": ("127.0.0.1",)})
    (finding,) = check_peer("host0:7070", "here", facts)
    assert finding.severity is Severity.FAILS
    assert not list(check_peer("127.0.0.1:7070", "here", facts))
    assert not list(check_peer("host0:7070", "here", HEALTHY))


@given(free=st.integers(0, 1000))
def test_disk_fails_exactly_below_the_need(free: int) -> None:
    assert bool(list(check_disk("here", "/runs", free, NEEDS))) == (free < NEEDS.checkpoint_bytes)


def test_the_worst_come_first_and_equal_ones_once() -> None:
    note, slow, fail = (make("files", "here", "text", "remedy") for make in (notes, slows, fails))
    assert worst_first([note, slow, note, fail, slow]) == [fail, slow, note]
    assert would_fail([note, fail])
    assert not would_fail([note, slow])
    assert fail.to_json()["severity"] == "fails"


@pytest.mark.parametrize(
    ("settings", "shares", "must"),
    [
        ((), True, False),
        (("exchange.transport='same-host'",), True, True),
        (("exchange.transport='tcp'",), False, False),
        (("exchange.zero=2",), False, False),
        (("compression.method='dlgs'",), False, False),
    ],
)
def test_needs_of_a_job(settings: tuple[str, ...], shares: bool, must: bool) -> None:
    job = load_job(
        None, parse_assignments(("cluster.workers=3", "cluster.servers=2", "checkpoint.keep=1", *settings))
    )
    memory = MemoryJob((1_000_000,), (Group(0, 1),), 3, 2, job.stage, optimizer_arrays=1)
    needs = needs_of(job, memory)
    # Gradients of three workers, and what two servers have of the parameters, all together once.
    assert needs.shared_bytes == (4 * 4_000_000 if shares else 0)
    assert needs.must_share is must
    # Parameters and momentum of two checkpoints.
    assert needs.checkpoint_bytes == 2 * 8_000_000
    # Python and its libraries are 200 MB.
    assert needs.worker_bytes == worker_memory(memory).total + 200_000_000
    assert needs.machine_bytes >= 3 * needs.worker_bytes
    assert needs_of(job, None) == Needs(needs.open_files)
