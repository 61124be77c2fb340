"""The ways of an exchange: servers or a ring, and the transport, stage of ZeRO, precision and compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.cluster import make_job
from taihu.core.job import Job
from taihu.core.planner.sparse_route import SparseAlgorithm

__all__ = ["DENSE", "SPARSE", "WAYS", "Way"]


@dataclass(frozen=True)
class Way:
    """One way; `route` is that of every group where compressed gradients go between workers."""

    kind: str
    zero: int
    precision: str = "fp32"
    transport: str = "tcp"
    method: str = "none"
    downlink: str = "auto"
    threshold: str = "layer"
    route: SparseAlgorithm | None = None

    def __str__(self) -> str:
        words = [self.kind, self.transport, f"zero{self.zero}", self.precision]
        if self.method != "none":
            words = [self.kind, self.transport, self.method, self.downlink]
            words += [self.threshold] if self.threshold != "layer" else []
        return "-".join([*words, self.route.value] if self.route else words)

    @property
    def is_dense(self) -> bool:
        return self.method == "none"

    @property
    def is_planned(self) -> bool:
        """Whether its groups may change during a run; servers take a plan from the coordinator alone."""
        by_measuring = self.zero < 3 and self.precision != "fp16"
        return self.method != "topk" and (self.kind == "ring" or by_measuring)

    def job(self, servers: int = 2, workers: int = 3, **sections: dict[str, Any]) -> Job:
        """A job that goes this way, with small frames; its plan is computed, and begins with a group a layer."""
        exchange: dict[str, Any] = {"kind": self.kind, "zero": self.zero, "transport": self.transport}
        if self.is_dense:
            exchange |= {"frame_bytes": 4096, "window_frames": 2, "bucket_bytes": 20000}
            optimizer: dict[str, Any] = {"name": "adam", "learning_rate": 0.01}
        else:
            # DoubleSqueeze selects by frames.
            exchange |= {} if self.downlink == "doublesqueeze" else {"frame_bytes": 4096}
            optimizer = {"momentum": 0.5, "weight_decay": 0.01, "learning_rate": 0.1}
        given: dict[str, dict[str, Any]] = {
            "exchange": exchange,
            "optimizer": optimizer,
            "train": {"precision": self.precision, "loss_scale": 256.0},
            "compression": {"method": self.method, "downlink": self.downlink, "threshold": self.threshold},
        }
        if not self.is_dense:
            # Where velocities are kept there is more that can go wrong.
            by = "servers" if self.downlink == "dense" else "workers"
            given["compression"] |= {"density": 0.1, "refresh_every": 3, "momentum_at": by}
        merged = {key: {**given.get(key, {}), **sections.get(key, {})} for key in given.keys() | sections.keys()}
        return make_job(servers, workers, **merged)


def _dense() -> list[Way]:
    ways = [Way("server", zero, transport=way) for zero in (0, 1) for way in ("same-host", "tcp", "grpc")]
    ways += [Way("ring", 0, transport=way) for way in ("same-host", "tcp", "grpc")]
    ways += [Way("ring", 1, transport=way) for way in ("tcp", "grpc")]
    for kind in ("server", "ring"):
        for zero in (2, 3):
            ways += [Way(kind, zero, precision) for precision in ("fp32", "bf16", "fp16")]
            ways += [Way(kind, zero, "fp32", "grpc"), Way(kind, zero, "fp16", "grpc")]
    return ways


def _sparse() -> list[Way]:
    by_group, by_layer = ("dlgs", "exact", "group"), ("dlgs", "exact", "layer")
    selections = [("topk", "exact", "layer"), ("lags", "exact", "layer"), by_group, by_layer]
    servers = [*selections, ("dlgs", "dense", "layer"), ("dlgs", "doublesqueeze", "layer")]
    servers.append(("dlgs", "doublesqueeze", "group"))
    ways = [Way("server", 1, method=a, downlink=b, threshold=c) for a, b, c in servers]
    ways.append(Way("server", 1, "fp32", "grpc", "dlgs", "exact"))
    for route in (SparseAlgorithm.ALLGATHER, SparseAlgorithm.REDUCE_SCATTER):
        ways += [Way("ring", 0, method=a, downlink=b, threshold=c, route=route) for a, b, c in selections]
    ways.append(Way("ring", 0, "fp32", "grpc", "dlgs", "exact", route=SparseAlgorithm.ALLGATHER))
    ways.append(Way("ring", 0, method="dlgs", downlink="dense", route=SparseAlgorithm.ALLGATHER))
    return ways


DENSE = tuple(_dense())
SPARSE = tuple(_sparse())
WAYS = DENSE + SPARSE
