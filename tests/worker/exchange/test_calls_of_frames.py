"""Calls of our functions that a frame costs: what a step with many frames has more than one with fewer, for each."""

from __future__ import annotations

import pytest
from support.cluster import layout_of
from support.listening import calls_in_a_step
from support.ways import Way

MOST: dict[str, float] = {"dense grpc": 124.5, "dense tcp": 128.5, "ring grpc": 58.5, "ring tcp": 67.0}
"""The calls of functions of ours in all processes for a frame of one worker; these numbers may only fall."""
_PATIENT = {"servers": 1, "workers": 2, "heartbeat_s": 300.0, "lost_after_s": 600.0}
_MIB = 1 << 20


def calls(way: Way, elements: int) -> int:
    """The calls in a step of two workers, whose gradients are one large group."""
    wide = {"frame_bytes": 4096, "window_frames": 32, "bucket_bytes": 10**9}
    exchange = {"kind": way.kind, "zero": way.zero, "transport": way.transport, **wide}
    return calls_in_a_step(way.job(1, 2, cluster=_PATIENT, exchange=exchange), layout_of(elements, 1024)).total()


def calls_of_a_frame(way: Way) -> float:
    """The calls for each frame of a worker on the way there and back, or each segment that one sends on a ring."""
    if way.kind == "ring":
        # Each of two ranks sends each half once in both phases, in segments of a MiB.
        few, many, frames = 32 * _MIB // 4, 64 * _MIB // 4, 2 * 32
    else:
        few, many, frames = 32 * 1024, 160 * 1024, 2 * 128
    return (calls(way, many) - calls(way, few)) / frames


@pytest.mark.parametrize("name", MOST)
def test_a_frame_costs_no_more_calls_than_before(name: str) -> None:
    kind, transport = name.replace("dense", "server").split()
    assert calls_of_a_frame(Way(kind, int(kind == "server"), transport=transport)) <= MOST[name]
