"""Faults in words against the words they were written in."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.chaos.faults import ANY, EXAMPLE, GRAMMAR, Fault, FaultKind, fault_from, is_member
from taihu.core.chaos.points import MEANINGS, Point

LASTING = (FaultKind.STOP, FaultKind.DELAY, FaultKind.FULL_DISK, FaultKind.SLOW_DISK, FaultKind.CLOCK_JUMP)
MEMBERS = st.builds("{} {}".format, st.sampled_from(["server", "worker"]), st.integers(0, 99_999)) | st.just(ANY)
SECONDS = st.integers(0, 10**9 - 1).map(float) | st.integers(0, 10**9).map(lambda millionths: millionths / 1e6)
WHEN = st.one_of(
    st.builds(lambda point, step: (point, step, None), st.sampled_from(Point), st.integers(0, 10**9 - 1) | st.none()),
    st.builds(lambda step: (None, step, None), st.integers(0, 10**9 - 1)),
    st.builds(lambda seconds: (None, None, seconds), SECONDS),
)


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    kind = draw(st.sampled_from(FaultKind))
    point, step, after = draw(WHEN if kind is not FaultKind.DELAY else WHEN.filter(lambda when: when[2] is None))
    seconds = draw(SECONDS) if kind in LASTING else 0.0
    return Fault(kind, draw(MEMBERS), point, step, after, seconds)


@given(faults())
def test_a_fault_survives_its_words(fault: Fault) -> None:
    assert fault_from(str(fault)) == fault


def test_words_as_a_person_writes_them() -> None:
    assert fault_from(EXAMPLE) == Fault(FaultKind.KILL, "worker 1", Point.PUSH, 12)
    assert fault_from("  stop any  after 1.5 s for 3 s") == Fault(FaultKind.STOP, ANY, after_s=1.5, seconds=3.0)
    assert fault_from("clock-jump any after 3 s").lasts_s == 3600.0
    assert fault_from("clock-jump any after 3 s for 7 s").lasts_s == 7.0
    assert fault_from("drop server 0 after step 3") == Fault(FaultKind.DROP, "server 0", after_step=3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected KIND MEMBER"),
        ("kill worker", "expected KIND MEMBER"),
        ("kill worker 01 at push", "expected KIND MEMBER"),
        ("kill worker 1", "expected when: at POINT, after step N, or after T s"),
        ("hit worker 1 at push", "expected a kind of fault (kill, stop, "),
        ("kill worker 1 at lunch", "expected a point (start-up, join, "),
        ("kill worker 1 at push after 3 s", "expected a point or seconds"),
        ("kill worker 1 at push for 3 s", "kill does not last"),
        ("corrupt worker 1 at push for 3 s", "corrupt does not last"),
        ("delay worker 1 after 3 s", "expected a point or a step"),
        ("kill worker 1 after step 3 after 3 s", "expected KIND MEMBER"),
    ],
)
def test_what_is_no_fault_is_told_in_a_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^expected") as caught:
        fault_from(text)
    assert words in str(caught.value)
    assert repr(text) in str(caught.value)


def test_members_have_a_role_and_a_rank() -> None:
    assert is_member("server 0")
    assert not any(map(is_member, ("any", "server", "server  0", "worker 1 ", "worker -1")))


def test_every_point_has_a_meaning() -> None:
    assert list(MEANINGS) == list(Point)


def test_the_page_of_faults_has_the_points_and_the_form() -> None:
    page = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text()
    assert all(f"| `{point.value}` | {meaning} |\n" in page for point, meaning in MEANINGS.items())
    assert f"`{GRAMMAR}`" in page
    (asked,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert all(fault_from(text) for text in tomllib.loads(asked)["chaos"]["faults"])
