"""The ports that processes listen at, with the numbers of the code."""

from __future__ import annotations

from typing import Final

from from_code.cells import table
from taihu.cli.doctor import DEFAULT_BIND
from taihu.launch.kubernetes.options import METRICS_PORT
from taihu.launch.meeting import USUAL_PORT
from taihu.launch.place import FIRST_PORT, PORTS

_HEAD: Final = """\
# Ports

Without a firewall nothing has to be set: processes take free ports, and tell each other. Only the first
process has to be found.

This page is made from the code: `make reference`.
"""
_TAIL: Final = """
Connections beside gRPC, where the plan has found them faster, take a free port unless `--direct-port` says
which. On one machine all listen on 127.0.0.1. What may come in through these ports, and how much of it:
[limits](../limits.md).
"""


def page() -> str:
    """The page of all ports."""
    rows = [
        (
            "server 0, in a ring worker 0",
            "the one of `--coordinator HOST:PORT`",
            str(USUAL_PORT),
            "all members of the run, `taihu status`, `top`, `stop`",
        ),
        ("other servers and workers", "`--bind HOST:PORT`", "a free one", "all members"),
        (
            "processes of `srun` and `torchrun`",
            "from the job's number",
            f"{FIRST_PORT} to {FIRST_PORT + PORTS - 1}",
            "all members",
        ),
        ("processes of `taihu launch`", "`--port P`: P, P+1, ... on each host", "free ones", "all members"),
        (
            "torch.distributed under `taihu launch`",
            "the port behind those of the first host",
            "a free one",
            "all workers",
        ),
        ("`/metrics` and health", "`--metrics-port P`", f"none; {METRICS_PORT} on Kubernetes", "Prometheus, probes"),
        ("`taihu doctor --listen`", "`--bind HOST:PORT`", DEFAULT_BIND, "other doctors"),
        ("sshd", "yours", "22", "`taihu launch`"),
    ]
    return "\n".join([_HEAD, *table(("who listens", "set by", "unless set", "who connects"), rows), _TAIL])
