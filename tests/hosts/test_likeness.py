"""Hosts that are not alike are named, with what was expected and the remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taihu.core.base.errors import ConfigError
from taihu.hosts.likeness import HostFacts, check_alike

FACTS = HostFacts("1.0", "3.11", "2.13.0", True, "abc", ("10.0.0.1/24",), 2)


def check(other: HostFacts, first: HostFacts = FACTS) -> None:
    check_alike([("a", first), ("b", other)], "1.0", "/work", ("train.py", "abc"), "/opt/python")


def test_other_addresses_and_cores_are_alike() -> None:
    check(replace(FACTS, interfaces=("10.0.0.2/24",), cores=64))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(FACTS, taihu="0.9"), "b: has taihu 0.9, expected 1.0 as here; install the same version"),
        (
            replace(FACTS, python="3.12"),
            "b: has Python 3.12, expected 3.11 as on a; install the same version, or give",
        ),
        (
            replace(FACTS, torch="2.6.0"),
            "b: has PyTorch 2.6.0, expected 2.13.0 as on a; install the same version, or",
        ),
        (replace(FACTS, torch=None), "b: /opt/python there has no PyTorch; install it"),
        (replace(FACTS, has_folder=False, script=None), "b: has no folder /work; make it there, share it, or give"),
        (replace(FACTS, script=None), "b: has no script train.py; copy it to the same place, or share the folder"),
        (replace(FACTS, script="abd"), "b: its train.py is another one than here; copy this one there"),
    ],
)
def test_a_host_that_is_not_alike(other: HostFacts, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(other)
    assert str(error.value).startswith(words)


def test_the_launcher_itself_needs_the_same_taihu_alone() -> None:
    """The first host is what others are compared with: the launcher may have another Python."""
    with pytest.raises(ConfigError, match=r"a: has taihu 0\.9"):
        check(FACTS, replace(FACTS, taihu="0.9"))
    check(replace(FACTS, python="3.13"), replace(FACTS, python="3.13"))
