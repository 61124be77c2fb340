"""Tests of a group run in one process, so that what they share is made once."""

from __future__ import annotations

import pytest


def test_a_test_is_handed_out_with_its_group(request: pytest.FixtureRequest) -> None:
    """By its name, which pytest-xdist writes the group into."""
    is_grouped = request.config.getoption("loadgroup", False)
    assert request.node.nodeid.endswith("@test_groups_of_tests") == is_grouped
