"""Each mistake is one line that names the thing and the remedy, with exit code 2, and costs no waiting."""

from __future__ import annotations

import gzip
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cluster import Cluster, layout_of, make_job

from taihu.core.job import job_to_toml

Taihu = Callable[..., subprocess.CompletedProcess[str]]


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stderr)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0], (word, lines[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "train.stesp=3"], ["unknown key train.stesp", "did you mean train.steps?"]),
        (["--set", "optimiser.name=sgd"], ["unknown key optimiser", "did you mean optimizer"]),
        (["--set", "train.learning_rate=1"], ["train.learning_rate", "optimizer.learning_rate"]),
        (["--set", "steps"], ["--set steps", "section.key=value"]),
        (["--steps", "many"], ["--steps", "integer", "--help"]),
        (["--steps", "0"], ["train.steps", "from 1 to"]),
        (["--set", "exchange.kind=star"], ["exchange.kind", "server", "ring"]),
        (["--set", "optimizer.schedule=step"], ["optimizer.milestones"]),
        (["no-such-job.toml"], ["no-such-job.toml", "not found"]),
        (["--frobnicate"], ["--frobnicate", "--help"]),
        (["--json", "nowhere/result.json"], ["nowhere"]),
        (["--json", "."], ["cannot write .", "folder"]),
        (["--logs", "file"], ["cannot write to file", "not a folder"]),
        (["--logs", "file/logs"], ["cannot write to file/logs", "file is not a folder"]),
        (["--trace-steps", "3-5"], ["--trace-steps", "--trace FILE"]),
        (["--trace", "trace.json", "--trace-steps", "5-3"], ["5 to 3"]),
        (["--density", "0.5"], ["--density", "--compression"]),
        (["--exchange", "ring", "--servers", "2"], ["--servers 2", "ring"]),
    ],
)
def test_training_refuses(taihu: Taihu, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    (tmp_path / "file").touch()
    done = taihu("train", *arguments)
    refused(done, *words)
    assert not done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "resnet21"], ["model.name", "resnet21", "did you mean resnet20?"]),
        (["--model", "nowhere.py:build"], ["nowhere.py", "does not exist"]),
        (["--data", "digitz"], ["data.name", "'digitz'", "did you mean digits?"]),
        (["--set", "data.name=synthetic:3x32"], ["data.name", "synthetic:3x32", "synthetic:CxHxW"]),
        (["--data", "fashion-mnist", "--data-path", "nowhere"], ["nowhere", "train-images-idx3-ubyte", "not found"]),
        (["--data", "cifar10"], ["cifar10", "--data-path"]),
        (["--data", "cifar10", "--data-path", "."], ["data_batch_1.bin", "not found"]),
        (["--batch", "1000", "--workers", "3"], ["batch 1000 of 3 workers", "1437", "479"]),
    ],
)
def test_training_refuses_what_its_workers_would_not_find_before_it_starts_them(
    taihu: Taihu, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    refused(taihu("train", "--logs", "logs", *arguments), *words)
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("arguments", [["worker", "--rank", "0"], ["server"], ["plan", "memory"]], ids=" ".join)
def test_every_command_with_a_job_refuses_unknown_names(taihu: Taihu, arguments: list[str]) -> None:
    refused(taihu(*arguments, "--set", "model.name=resnet21"), "model.name", "resnet21", "resnet20")
    refused(taihu(*arguments, "--set", "data.name=digitz"), "data.name", "'digitz'", "digits")


def test_daemons_refuse_results_that_they_could_not_write_before_they_train(taihu: Taihu) -> None:
    for option in ("--json", "--save", "--trace"):
        refused(taihu("worker", "--rank", "0", option, "nowhere/file"), "cannot write nowhere/file")
    refused(taihu("server", "--trace", "nowhere/file"), "cannot write nowhere/file")


ALONE = ("--servers", "1", "--workers", "1")


@pytest.mark.parametrize(
    ("members", "arguments", "words"),
    [
        (ALONE, ["--model", "mine.py:biuld"], ["mine.py", "'biuld'", "it has: build"]),
    ],
)
def test_what_workers_refuse_is_said_once(
    taihu: Taihu, tmp_path: Path, members: tuple[str, ...], arguments: list[str], words: list[str]
) -> None:
    (tmp_path / "mine.py").write_text("def build(input_shape, classes):\n    pass\n")
    refused(taihu("train", *members, *arguments), *words)


def test_a_truncated_data_file_is_named_with_both_sizes(taihu: Taihu, tmp_path: Path) -> None:
    header = struct.pack(">IIII", 2051, 10, 28, 28)
    for name in ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
        (tmp_path / name).write_bytes(gzip.compress(header + bytes(10 * 28 * 28 - 5)))
    for name in ("train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (tmp_path / name).write_bytes(gzip.compress(struct.pack(">II", 2049, 10) + bytes(10)))
    done = taihu("train", *ALONE, "--batch", "4", "--data", "fashion-mnist", "--data-path", str(tmp_path))
    refused(done, "train-images-idx3-ubyte", "7856", "7851")


def test_a_job_file_that_is_no_toml_is_named(taihu: Taihu, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[train\nsteps = 3\n")
    refused(taihu("train", "job.toml"), "job.toml", "not valid TOML", "line 1")


@pytest.mark.parametrize("command", ["worker", "server"])
def test_daemons_refuse_a_rank_outside_the_world(taihu: Taihu, command: str) -> None:
    flag = "--rank" if command == "worker" else "--index"
    refused(taihu(command, flag, "7", "--coordinator", "127.0.0.1:1"), f"{command} 7", "outside the world of")


def test_a_worker_without_a_rank_or_address_says_what_to_give(taihu: Taihu) -> None:
    refused(taihu("worker"), "--rank")
    refused(taihu("worker", "--rank", "0"), "--coordinator")
    refused(taihu("worker", environment={"RANK": "first"}), "RANK", "first")


def test_a_metrics_port_must_be_a_number_and_free(taihu: Taihu) -> None:
    refused(taihu("server", "--metrics-port", "http"), "--metrics-port", "integer")
    refused(taihu("server", "--metrics-port", "70000"), "70000", "65535")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104
        taken.listen()
        port = str(taken.getsockname()[1])
        refused(taihu("server", "--bind", "127.0.0.1:0", "--metrics-port", port), port, "in use")


def test_a_port_in_use_is_named(taihu: Taihu) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(taihu("server", "--bind", address), address, "in use", "--bind")


def test_an_unreachable_server_is_named_with_the_time_tried(taihu: Taihu) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    patience = ("--set", "cluster.connect_timeout_s=0.5")
    refused(taihu("worker", "--rank", "0", "--coordinator", address, *patience), address, "0.5 s")
    refused(taihu("status", address, "--timeout", "0.5"), address, "0.5 s")
    refused(taihu("status", "nonsense"), "nonsense", "host:port")


def test_a_worker_with_another_model_is_told_which_layer_differs(taihu: Taihu, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from taihu.worker.engine import Flatten, Linear, Sequential\n"
        "def build(input_shape, classes):\n"
        "    return Sequential([Flatten(), Linear(classes)])\n"
    )
    job = make_job(1, 2, model={"name": "mine.py:build"})
    with Cluster(job) as cluster, cluster.member(0, layout_of(3, 4)):
        (tmp_path / "job.toml").write_text(job_to_toml(cluster.job))
        refused(taihu("worker", "job.toml", "--rank", "1"), "worker 1's model differs", "layer0", "fc1")


def test_a_worker_with_another_job_is_refused(taihu: Taihu, tmp_path: Path) -> None:
    with Cluster(make_job(1, 2)) as cluster:
        (tmp_path / "job.toml").write_text(job_to_toml(cluster.job))
        done = taihu("worker", "job.toml", "--rank", "1", "--set", "train.batch=8")
        refused(done, "worker 1 ", "other settings than server 0: train.batch 8, expected 32;", "--set")


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, ["model.safetensors", "not found"]), (b"rubbish", ["model.safetensors", "safetensors"])],
)
def test_evaluating_what_is_no_model_is_refused(
    taihu: Taihu, tmp_path: Path, content: bytes | None, words: list[str]
) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    refused(taihu("evaluate", "model.safetensors"), *words)


def test_a_benchmark_refuses_an_unknown_model_role_or_rate(taihu: Taihu) -> None:
    refused(taihu("dev", "bench", "exchange", "--model", "resnet51"), "resnet51", "resnet50")
    refused(taihu("dev", "bench", "exchange", "--role", "boss"), "boss", "worker")
    refused(taihu("dev", "bench", "exchange", "--rate", "fast"), "fast", "1gbit")
