"""Workers over whom fully connected layers are spread, as real processes: what is wrong is told on every rank."""

from __future__ import annotations

from pathlib import Path

from support.daemons import daemons, free_port, ring_address, wait_for

SHARDED = ("--exchange", "ring", "--workers", "3", "--set", "exchange.fc=shard", "--bind", "127.0.0.1:0")


def test_a_missing_peer_is_named_on_every_rank(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with daemons(tmp_path) as start:
        # Worker 1 is up, and tries, before the time of worker 0 begins to run.
        second = start("taihu.worker", *SHARDED, "--rank", "1", "--coordinator", address, "--metrics-port", "0")
        wait_for(lambda: "metrics" in (tmp_path / "0.log").read_text(), "worker 1 did not start")
        impatient = ("--bind", address, "--set", "cluster.connect_timeout_s=5")
        first = start("taihu.worker", *SHARDED, "--rank", "0", *impatient)
        for log, worker in (("0.log", second), ("1.log", first)):
            assert worker.wait(timeout=600) != 0
            last = (tmp_path / log).read_text().splitlines()[-1]
            assert last.startswith("error: ")
            assert "worker 2 did not join" in last


def test_what_cannot_be_split_over_so_many_workers_is_one_error_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "narrow.py").write_text(
        "from taihu.worker.engine import Conv2d, Flatten, Linear, Sequential\n"
        "def build(shape, classes):\n"
        "    return Sequential([Conv2d(2, 3), Flatten(), Linear(2)])\n"
    )
    job = [*SHARDED, "--set", "model.name=narrow.py:build", "--set", "data.name=synthetic:1x8x8:classes=2"]
    with daemons(tmp_path) as start:
        first = start("taihu.worker", *job, "--rank", "0")
        address = ring_address(first)
        others = [start("taihu.worker", *job, "--rank", str(rank), "--coordinator", address) for rank in (1, 2)]
        for rank, worker in enumerate((first, *others)):
            worker.wait(timeout=600)
            last = (tmp_path / f"{rank}.log").read_text().strip().splitlines()[-1]
            assert "that can be split over 3 workers; set exchange.fc = 'data'" in last, last
