"""Dense gradients of loops are summed by a kernel, where workers share no memory."""

from __future__ import annotations

import pytest
import torch
from support.torch_workers import on_workers
from torch import nn

from taihu.allreduce.ring.kernel_ring import IS_POSSIBLE
from taihu.torch.optimizer import DistributedOptimizer
from taihu.torch.world import World

INPUTS, OUTPUTS = 300, 400


@pytest.mark.skipif(not IS_POSSIBLE, reason="this machine's kernels cannot drive a ring")
@pytest.mark.parametrize(("transport", "is_by_kernel"), [("tcp", True), ("grpc", False)])
def test_dense_gradients_that_come_back_are_summed_by_a_kernel(transport: str, is_by_kernel: bool) -> None:
    """No frame carries them then; of two workers each sends as many bytes as there are."""

    def sent(world: World) -> tuple[int, int]:
        net = nn.Linear(INPUTS, OUTPUTS)
        optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net, world)
        communicator = world.meet()

        def count() -> tuple[int, int]:
            return communicator.sent_bytes, sum(link.sent_bytes for link in communicator._links.values())

        # The first one finds out in which order gradients come, and opens what the exchange needs.
        for step in range(2):
            before = count() if step else (0, 0)
            net(torch.randn(2, INPUTS)).sum().backward()
            optimizer.step()
        after = count()
        return after[0] - before[0], after[1] - before[1]

    # gRPC carries the first steps, unless the job says what does.
    for all_bytes, in_frames in on_workers(2, sent, exchange={"transport": transport}):
        gradients = 4 * (INPUTS + 1) * OUTPUTS
        assert gradients <= all_bytes <= 1.1 * gradients
        assert (in_frames < 0.1 * gradients) == is_by_kernel
