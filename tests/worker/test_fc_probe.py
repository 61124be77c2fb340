"""The probe of the links: all ranks agree on one choice, also when there is one rank only."""

from __future__ import annotations

import pytest
from support.peers import Peers

from taihu.allreduce.communicator import Communicator
from taihu.core.planner.fc_mode import FcChoice, FcJob, FcLayer
from taihu.core.wire.base.clock import SystemClock
from taihu.worker.fc.probe import agree_on_fc, probe_links

LAYERS = [FcLayer("fc1", 2048, 512), FcLayer("fc2", 512, 2)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_links_are_measured(size: int) -> None:
    with Peers(size, mesh=True) as peers:
        for links in peers.run(lambda communicator: probe_links(communicator, 0, SystemClock())):
            assert links.transfer_seconds > 0
            assert (links.seconds_per_byte > 0) == (size > 1)


@pytest.mark.parametrize("size", [1, 3])
def test_all_ranks_agree(size: int) -> None:
    def agree(communicator: Communicator) -> list[tuple[FcChoice, ...]]:
        facts, clock = FcJob(8, size, 0), SystemClock()
        return [
            agree_on_fc(LAYERS, facts, communicator, clock),
            agree_on_fc(LAYERS, facts, communicator, clock, insist=True),
            agree_on_fc(LAYERS[:1], facts, communicator, clock, insist=True, leave_one=True),
        ]

    with Peers(size, mesh=True) as peers:
        first, *others = peers.run(agree)
    assert all(other == first for other in others)
    _, insisting, leaving = ([choice.choice for choice in choices] for choices in first)
    # Two outputs cannot be split over three workers, and one worker splits nothing.
    assert insisting == (["data", "data"] if size == 1 else ["shard", "data"])
    assert leaving == ["data"]
