"""Runs of one job through more or fewer servers: the same bits, but where a run refuses servers that join."""

from __future__ import annotations

import numpy as np
import pytest
from support.cluster import layout_of, make_job
from support.exchanges import exchange_steps
from support.worker import Values

from taihu.core.job import Job
from taihu.core.job.sizes import tied_to_servers

LAYOUT = layout_of(300, 7, 1, 1200, 64)
STEPS = 7


def gradients(rank: int, step: int) -> Values:
    return np.random.default_rng([rank, step]).standard_normal(LAYOUT.elements, dtype=np.float32)


def job_of(servers: int, optimizer: dict[str, object], compression: dict[str, object]) -> Job:
    return make_job(
        servers,
        3,
        exchange={"plan": "single" if compression["method"] == "topk" else "bucket:1kB"},
        compression=compression,
        optimizer={"learning_rate": 0.1, **optimizer},
    )


def bits_with(servers: int, optimizer: dict[str, object], compression: dict[str, object]) -> list[bytes]:
    """The parameters behind each step."""
    run = exchange_steps(job_of(servers, optimizer, compression), LAYOUT, gradients, steps=STEPS)
    return [replicas[0].tobytes() for replicas in run.parameters]


SGD: dict[str, object] = {"momentum": 0.9, "weight_decay": 0.01}
SELECTS = {"density": 0.1, "refresh_every": 3}


@pytest.mark.parametrize(
    ("optimizer", "compression"),
    [
        (SGD, {"method": "none"}),
        ({"name": "adam"}, {"method": "none"}),
        (SGD, {"method": "topk", **SELECTS}),
        ({"name": "adam"}, {"method": "lags", **SELECTS}),
        (SGD, {"method": "dlgs", **SELECTS, "threshold": "group"}),
        (SGD, {"method": "dlgs", **SELECTS, "downlink": "dense", "momentum_at": "servers"}),
        (SGD, {"method": "dlgs", **SELECTS, "value_type": "int8"}),
        (SGD, {"method": "quantized", "value_type": "int4"}),
    ],
)
def test_bits_are_those_of_any_number_of_servers(
    optimizer: dict[str, object], compression: dict[str, object]
) -> None:
    assert tied_to_servers(job_of(1, optimizer, compression)) == ""
    alone = bits_with(1, optimizer, compression)
    assert len(set(alone)) == STEPS
    for servers in (2, 3):
        assert bits_with(servers, optimizer, compression) == alone


@pytest.mark.parametrize(
    "compression",
    [
        {"method": "dlgs", **SELECTS, "downlink": "doublesqueeze"},
        {"method": "dlgs", **SELECTS, "downlink": "exact", "downlink_value_type": "int4"},
        {"method": "quantized", "value_type": "int4", "downlink_value_type": "int4"},
    ],
)
def test_where_they_are_not_a_run_takes_no_servers_that_join(compression: dict[str, object]) -> None:
    assert tied_to_servers(job_of(1, {}, compression))
    assert bits_with(3, {}, compression) != bits_with(1, {}, compression)
