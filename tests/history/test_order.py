"""Orders of frames as files: what is added is read back, however much; damage is told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import ConfigError
from taihu.core.history.order import ENTRY_BYTES, Entered, OrderFile, OrderHead, read_orders

HEAD = OrderHead("digest", 0, 7, 0, 3, 20, (((0, 4), (6, 10)), ((10, 20),)))
NUMBER = st.integers(0, 2**32 - 1)
ENTRY = st.builds(Entered, st.integers(0, 1), st.integers(0, 2), NUMBER, NUMBER, NUMBER, st.booleans())


@given(entries=st.lists(ENTRY, max_size=30), is_whole=st.booleans())
def test_what_is_added_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entered], *, is_whole: bool
) -> None:
    folder = tmp_path_factory.mktemp("order")
    file = OrderFile(folder, HEAD)
    file.add(entries)
    if is_whole:
        file.end()
    file.close()
    (order,) = read_orders(folder)
    assert (order.head, order.entries, order.is_whole) == (HEAD, tuple(entries), is_whole)


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    file = OrderFile(tmp_path, HEAD)
    entries = [Entered(0, 1, step, step, step - 1) for step in range(1, 10_001)]
    for each in entries:
        file.add((each,))
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size > 10_000 * ENTRY_BYTES - (1 << 16)
    file.close()
    assert read_orders(tmp_path)[0].entries == tuple(entries)


def test_damage_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no orders there; servers record them where exchange\.consistency"):
        read_orders(tmp_path)
    file = OrderFile(tmp_path, HEAD)
    file.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(ConfigError, match="not an order of this version"):
        read_orders(tmp_path)
    path.write_bytes(whole + b"\x05" + bytes(ENTRY_BYTES - 1))
    with pytest.raises(ConfigError, match="damaged: worker 0, frame 5 of 2"):
        read_orders(tmp_path)


def test_a_server_that_is_missing_is_named(tmp_path: Path) -> None:
    OrderFile(tmp_path, OrderHead("digest", 1, 7, 0, 3, 20, HEAD.frames)).close()
    with pytest.raises(ConfigError, match="expected one order of each server, found those of 1"):
        read_orders(tmp_path)
