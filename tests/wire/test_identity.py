"""The metadata that opens an exchange."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.loopback import Loopback, loopback_method
from support.strategies import CHARACTERS

from taihu.core.base.errors import FrameError
from taihu.core.wire.frames.identity import WorkerIdentity, identity_from_metadata, identity_to_metadata
from taihu.core.wire.serving.channel import open_channel

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", alphabet=CHARACTERS, fullmatch=True)
IDENTITIES = st.builds(WorkerIdentity, NAMES, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
OTHER: list[tuple[str, str | bytes]] = [("user-agent", "grpc-python"), ("x-bin", b"\x00\xff")]


@settings(deadline=None)
@given(IDENTITIES, st.permutations(range(5)))
def test_an_identity_comes_back_whatever_stands_beside_it(identity: WorkerIdentity, order: list[int]) -> None:
    metadata: list[tuple[str, str | bytes]] = [*identity_to_metadata(identity), *OTHER]
    assert identity_from_metadata([metadata[i] for i in order]) == identity


def test_an_identity_survives_a_real_call() -> None:
    identity = WorkerIdentity("fashion.v2_a-b", 7, 2**64 - 1)
    seen: list[WorkerIdentity] = []

    def behave(request: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(identity_from_metadata(context.invocation_metadata()))
        return request

    with Loopback() as loopback, open_channel(loopback.address) as channel:
        loopback.behave = behave
        loopback_method(channel)(b"", timeout=120, metadata=identity_to_metadata(identity))
    assert seen == [identity]


@settings(deadline=None)
@given(IDENTITIES, st.integers(0, 2))
def test_a_missing_item_is_refused(identity: WorkerIdentity, missing: int) -> None:
    metadata: list[tuple[str, str | bytes]] = [*identity_to_metadata(identity), *OTHER]
    del metadata[missing]
    with pytest.raises(FrameError, match="taihu-job, taihu-rank and taihu-incarnation"):
        identity_from_metadata(metadata)


@settings(deadline=None, max_examples=200)
@given(IDENTITIES, st.integers(1, 2), st.text(CHARACTERS, max_size=5) | st.binary(max_size=5) | st.just("9" * 5000))
def test_what_is_no_number_is_refused(identity: WorkerIdentity, item: int, value: str | bytes) -> None:
    metadata: list[tuple[str, str | bytes]] = list(identity_to_metadata(identity))
    metadata[item] = (metadata[item][0], value)
    try:
        seen = identity_from_metadata(metadata)
    except FrameError:
        return
    assert isinstance(value, str)
    assert int(value) == (seen.rank if item == 1 else seen.incarnation)
