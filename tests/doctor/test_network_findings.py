"""Findings about ports, clocks and links."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.doctor.facts import ClockFacts, Interface, LinkFacts, Port, PortFacts
from taihu.doctor.findings import Severity
from taihu.doctor.network import CLOCK_LIMIT_S, check_clock, check_links, check_port, rate_text

RATES = st.floats(1e5, 1e10)
ETHERNET = Interface("eth0", "10.0.0.1", 1500)
LINK = LinkFacts(
    "here", "there", 1e-4, 1e8, 1.1e8, 2e8, small_passed=True, near_interface=ETHERNET, far_interface=ETHERNET
)


@pytest.mark.parametrize(
    ("port", "awaited", "severity"),
    [
        (Port.OPEN, True, None),
        (Port.OPEN, False, None),
        (Port.RUNNING, True, Severity.NOTE),
        (Port.RUNNING, False, None),
        (Port.OTHER, True, Severity.FAILS),
        (Port.OTHER, False, Severity.FAILS),
        (Port.REFUSED, True, Severity.FAILS),
        (Port.REFUSED, False, Severity.NOTE),
        (Port.DROPPED, True, Severity.FAILS),
        (Port.DROPPED, False, Severity.FAILS),
        (Port.UNREACHABLE, True, Severity.FAILS),
        (Port.UNKNOWN, False, Severity.FAILS),
    ],
)
def test_ports(port: Port, awaited: bool, severity: Severity | None) -> None:
    found = [finding.severity for finding in check_port(PortFacts("a:7070", port, "here", 3.0), awaited=awaited)]
    assert found == ([] if severity is None else [severity])


def test_a_dropped_port_is_told_by_number_and_time() -> None:
    (finding,) = check_port(PortFacts("[fd00::2]:7070", Port.DROPPED, "here", 3.0))
    assert "within 3 s" in finding.text
    assert "port 7070" in finding.remedy


@given(ahead=st.floats(-10, 10), error=st.floats(0, 5))
def test_a_clock_is_found_where_it_is_surely_off(ahead: float, error: float) -> None:
    found = list(check_clock(ClockFacts("there", ahead, error)))
    # The true difference is anywhere within the error: all of these have to be beyond the limit.
    nearest = min(abs(ahead - error), abs(ahead + error)) if abs(ahead) > error else 0.0
    assert bool(found) == (nearest > CLOCK_LIMIT_S)
    for finding in found:
        assert ("ahead of" in finding.text) == (ahead > 0)


@given(rates=st.lists(st.tuples(RATES, RATES), min_size=1, max_size=6))
def test_a_link_is_slow_beside_the_others_by_its_slower_direction(rates: list[tuple[float, float]]) -> None:
    links = [replace(LINK, far=str(place), up=up, down=down) for place, (up, down) in enumerate(rates)]
    slow = {finding.where for finding in check_links(links)}
    expected = set()
    for place, own in enumerate(rates):
        others = [min(pair) for at, pair in enumerate(rates) if at != place]
        if others and 2 * min(own) < median(others):
            expected.add(f"here - {place}")
    assert slow == expected


@given(rate=RATES, promised=st.floats(1e6, 1e11))
def test_a_link_is_slow_below_seven_tenths_of_what_was_promised(rate: float, promised: float) -> None:
    link = replace(LINK, up=rate, down=2 * rate, direct=0.0)
    found = list(check_links([link], promised))
    assert bool(found) == (rate < 0.7 * (promised / 8))
    # What interfaces claim counts where nobody has promised anything.
    claiming = replace(ETHERNET, claimed_bits_per_second=promised)
    assert bool(list(check_links([replace(link, near_interface=claiming)]))) == bool(found)
    faster = replace(ETHERNET, claimed_bits_per_second=2 * promised)
    by_both = check_links([replace(link, near_interface=claiming, far_interface=faster)])
    assert bool(list(by_both)) == bool(found)


def test_grpc_that_does_not_fill_a_link_is_told_from_a_slow_link() -> None:
    filled_by_tcp = replace(LINK, up=5e8, down=5e8, direct=1.2e9)
    (by_grpc,) = check_links([filled_by_tcp], 1e10)
    assert "a connection beside gRPC carries 9.6 Gbit/s" in by_grpc.text
    assert "--direct-port" in by_grpc.remedy
    (by_link,) = check_links([replace(filled_by_tcp, direct=5e8)], 1e10)
    assert "beside" not in by_link.text


@pytest.mark.parametrize(("near", "far", "found"), [(1500, 1500, 0), (9000, 1500, 1), (1000, 1000, 1), (1500, 0, 0)])
def test_mtu(near: int, far: int, found: int) -> None:
    link = replace(LINK, near_interface=replace(ETHERNET, mtu=near), far_interface=replace(ETHERNET, mtu=far))
    findings = list(check_links([link]))
    assert [(each.check, each.severity) for each in findings] == [("mtu", Severity.SLOWS)] * found


@pytest.mark.parametrize(("small_passed", "check"), [(True, "mtu"), (False, "link")])
def test_a_measurement_that_was_broken_off(small_passed: bool, check: str) -> None:
    (finding,) = check_links([replace(LINK, failure="no answer", small_passed=small_passed, up=0.0)])
    assert (finding.check, finding.severity) == (check, Severity.FAILS)


def test_a_long_way() -> None:
    (finding,) = check_links([replace(LINK, alpha_s=0.08)])
    assert "80 ms" in finding.text


@pytest.mark.parametrize(("rate", "text"), [(1, "8 bit/s"), (12.5e6, "100 Mbit/s"), (1.25e9, "10 Gbit/s")])
def test_rates_are_told_in_bits(rate: float, text: str) -> None:
    assert rate_text(rate) == text
