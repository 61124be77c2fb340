"""`taihu doctor` on this machine: its words, results and exit codes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import PATIENCE_S, Command

from taihu.cli.main import make_app
from taihu.core.process.entry import run_app
from taihu.doctor.service import ListeningDoctor

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Exit code, output and errors of `taihu doctor`, on a machine whose own name others can reach."""
    monkeypatch.setattr("taihu.doctor.collecting.gethostname", lambda: "127.0.0.1")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run_app(make_app(), ["doctor", *arguments])
        return (int(str(ended.value.code)), *capsys.readouterr())

    return run


def test_each_finding_is_a_line_and_a_row(doctor: Run, tmp_path: Path) -> None:
    results = tmp_path / "findings.json"
    code, output, _ = doctor("--set", f"data.name={tmp_path / 'none.npz'}", "--json", str(results))
    assert code == 1
    (finding,) = [row for row in json.loads(results.read_text())["findings"] if row["check"] == "data"]
    assert f"fails: here: {finding['text']}; {finding['remedy']}\n" in output
    assert "none.npz" in finding["text"]


def test_a_peer_is_examined_too(doctor: Run, tmp_path: Path) -> None:
    results = tmp_path / "findings.json"
    with ListeningDoctor("127.0.0.1:0") as listening:
        peer = f"127.0.0.1:{listening.port}"
        _, output, _ = doctor("--peers", peer, "--peers", peer, "--json", str(results))
    found = json.loads(results.read_text())
    assert found["machines"].keys() == {"here", peer}
    assert [(link["near"], link["far"], link["failure"]) for link in found["links"]] == [("here", peer, None)]
    assert [port["state"] for port in found["ports"]] == ["open"]
    assert f"here - {peer}" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "--peers", "a:1"), "--peers: does not go with --listen"),
        (("--listen", "job.toml"), "JOB.toml: does not go with --listen"),
        (("--bind", "127.0.0.1:0"), "give --listen as well"),
        (("--peers", "a:0"), "expected HOST:PORT"),
        (("--peers", "a"), "expected host:port"),
        (("--rate", "fast"), "--rate fast"),
        (("--set", "train.bach=1"), "train.batch"),
    ],
)
def test_bad_usage(doctor: Run, arguments: tuple[str, ...], words: str) -> None:
    code, _, errors = doctor(*arguments)
    assert code == 2
    assert words in errors


def test_a_doctor_that_listens_ends_well_with_ctrl_c(tmp_path: Path) -> None:
    listening = Command("taihu", "doctor", "--listen", "--bind", "127.0.0.1:0", folder=tmp_path)
    assert listening.stdout.readline().startswith("listening on 127.0.0.1:")
    listening.send_signal(signal.SIGINT)
    listening.communicate(timeout=PATIENCE_S)
    assert listening.returncode == 0
