"""Real runs over IPv6: through servers and around a ring, with addresses in brackets everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.daemons import Start, listening, ring_address

from taihu.core.coordination.client.awaited import missing_of
from taihu.core.coordination.status import fetch_status

RUN = ("--workers", "2", "--steps", "3", "--set", "train.evaluate=false", "--set", "cluster.threads=1")
# What goes through memory of one machine would not show the addresses.
OVER_TCP = ("--set", "exchange.transport=tcp")


@pytest.mark.parametrize("exchange", ["server", "ring"])
def test_a_run_over_ipv6(start: Start, tmp_path: Path, exchange: str) -> None:
    flags: tuple[str, ...] = (*RUN, *OVER_TCP, "--exchange", exchange)
    here = ("--bind", "[::1]:0", "--linger", "0")
    if exchange == "server":
        host = start("taihu.ps_server", *flags, "--servers", "1", *here)
        flags = (*flags, "--servers", "1")
        others = [0, 1]
    else:
        host = start("taihu.worker", *flags, "--rank", "0", "--json", "0.json", *here)
        others = [1]
    address = listening(host)[0] if exchange == "server" else ring_address(host)
    assert address.startswith("[::1]:")
    assert missing_of(fetch_status(address, 600))
    own = here if exchange == "ring" else ()
    members = [
        start("taihu.worker", *flags, "--rank", str(rank), "--coordinator", address, "--json", f"{rank}.json", *own)
        for rank in others
    ]
    assert [process.wait(timeout=600) for process in (host, *members)] == [0] * (1 + len(members))
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert results[0]["parameters_sha256"] == results[1]["parameters_sha256"]
    assert results[0]["steps"] == 3
