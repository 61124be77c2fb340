"""Places of checkpoints in folders and stores: what is there is there as a whole, and what goes wrong is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from structlog.testing import capture_logs
from support.cluster import layout_of
from support.commands import run_command
from support.made_checkpoints import make_checkpoint

from taihu.core.base.errors import CheckpointError, ConfigError
from taihu.core.checkpoint.files import open_part
from taihu.core.checkpoint.keepers import going_on, resumed_from
from taihu.core.checkpoint.manifest import MANIFEST
from taihu.core.checkpoint.part import Elements, Part, State
from taihu.core.checkpoint.places import Place, RemotePath, copied, inside, place_of, setting_of, write_durably
from taihu.core.checkpoint.store import CheckpointStore
from taihu.core.checkpoint.writer import PartWriter
from taihu.core.job import Job, job_to_toml
from taihu.core.job.reading import load_job
from taihu.local.resuming import check_folder, find_checkpoint

LAYOUT = layout_of(5, 70)


def names(place: Place) -> list[str]:
    return [each.name for each in inside(place)]


def test_a_file_is_there_as_a_whole_or_not_at_all(place: Place) -> None:
    path = place / "a"

    def seen() -> None:
        assert not path.exists()

    with write_durably(path, seen) as file:
        file.write(b"all of it")
        seen()
    assert (path.read_bytes(), names(place)) == (b"all of it", ["a"])

    def fill_the_disk() -> None:
        with write_durably(path) as again:
            again.write(b"half of")
            raise OSError(28, "disk full")

    with pytest.raises(OSError, match="disk full"):
        fill_the_disk()
    assert (path.read_bytes(), names(place)) == (b"all of it", ["a"])


def test_places_are_asked_as_paths_are(place: Place) -> None:
    folder, path = place / "b", place / "b" / "c"
    assert not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"1")
    assert [folder.is_dir(), folder.is_file(), path.is_dir(), path.is_file()] == [True, False, False, True]
    assert (path.name, path.parent, path.resolve()) == ("c", folder, path.absolute())
    assert place_of(str(path)) == path
    assert place_of(setting_of(path) if isinstance(path, Path) else str(setting_of(path))) == path
    path.unlink()
    path.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        path.read_bytes()


def test_a_file_can_be_mapped(place: Place, tmp_path: Path) -> None:
    path, copies = place / "d", tmp_path / "copies"
    copies.mkdir()
    path.write_bytes(b"values")
    assert copied(path, lambda: copies).read_bytes() == b"values"
    with pytest.raises(OSError, match="none"):
        copied(place / "none", lambda: copies).read_bytes()


def test_a_job_goes_on_from_a_store(place: Place) -> None:
    made = make_checkpoint(place, LAYOUT, servers=2)
    text = job_to_toml(load_job(None, {"checkpoint": {"dir": str(place)}}))
    job = Job.model_validate({"checkpoint": {"dir": str(place), "every_steps": 7}})
    assert f'dir = "{place}"' in text
    on = resumed_from(going_on(job, 3))
    assert on is not None
    on.verify()
    assert (on.step, on.folder) == (3, made.folder)
    if not str(place).startswith("memory:"):
        assert find_checkpoint(str(place), Path("runs")).checkpoint.folder == made.folder
        with pytest.raises(ConfigError, match="it has checkpoints up to step 3"):
            check_folder(job)
        check_folder(going_on(job, 3))


def test_memory_of_one_process_is_no_place_for_a_run() -> None:
    with pytest.raises(ConfigError, match="is memory of one process"):
        check_folder(Job.model_validate({"checkpoint": {"dir": "memory://here"}}))


@pytest.mark.parametrize("url", ["ftp://me:secret@host/folder", "s3://key:secret@bucket/folder"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    for refused in (lambda: place_of(url), lambda: load_job(None, {"checkpoint": {"dir": url}})):
        with pytest.raises(ConfigError, match="expected a URL without a password") as raised:
            refused()
        assert "secret" not in str(raised.value)


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="nobodys://x: Protocol not known"):
        RemotePath("nobodys://x").exists()
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"^s3://x: needs the package fsspec; .* pip install 'taihu\[remote\]'$"):
        RemotePath("s3://x").exists()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A store whose library raises what is no OSError, with a signed URL in it."""

    class NoAnswerError(Exception):
        pass

    def fail(*_: Any, **__: Any) -> Any:
        raise NoAnswerError("503 of https://host/bucket/key?signature=secret\nafter 3 tries")

    place = place_of("memory://broken")
    with monkeypatch.context() as patch:
        for name in ("info", "ls", "open", "rm_file", "makedirs", "cat_file", "get_file"):
            patch.setattr(MemoryFileSystem, name, fail)
        yield place


def test_a_store_that_does_not_answer_is_no_empty_one(broken: Place) -> None:
    with pytest.raises(CheckpointError, match=r"memory://broken: cannot be read: 503 of .* is the store there"):
        CheckpointStore(broken).going_on({})
    with pytest.raises(OSError, match="503") as raised:
        (broken / "a").read_bytes()
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_part_that_a_store_does_not_take_is_left_out(broken: Place) -> None:
    values = Elements(np.array([[0, 3]]), {"parameters": np.zeros(3, np.float32)})
    left_out: list[tuple[int, str]] = []
    with (
        capture_logs() as logs,
        PartWriter(broken, lambda *_: None, lambda step, why: left_out.append((step, why))) as writer,
    ):
        writer.write(1, lambda: Part("server 0", 1, State(values)))
    assert [(step, "503" in why) for step, why in left_out] == [(1, True)]
    assert all("secret" not in str(log) for log in logs)


def test_commands_take_urls(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    make_checkpoint(place_of(url), LAYOUT, servers=2, step=3)
    make_checkpoint(place_of(url), LAYOUT, servers=2, step=4)
    listed = run_command("taihu", "checkpoint", "ls", url, folder=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert f"{url}/step-000004" in listed.stdout
    moved = run_command(
        "taihu", "checkpoint", "reshard", url, f"{url}/moved", "--servers", "1", "--workers", "1", folder=tmp_path
    )
    assert moved.stdout == f"{url}/moved/step-000004: for 1 server and 1 worker\n"
    (tmp_path / "store" / "step-000003" / "server-1.safetensors").write_bytes(b"")
    verified = run_command("taihu", "checkpoint", "verify", url, folder=tmp_path)
    assert verified.returncode == 2
    assert f"1 checkpoint of 2 damaged, first {url}/step-000003/server-1.safetensors: 0 bytes" in verified.stderr


def test_a_checkpoint_in_a_store_holds_what_one_in_a_folder_does(place: Place, tmp_path: Path) -> None:
    there, here = (make_checkpoint(where, LAYOUT, servers=2) for where in (place / "a", tmp_path / "b"))
    assert there.manifest == here.manifest
    for member in there.manifest.files:
        with open_part(there.file_of(member)) as part:
            assert part.member == member
    assert [path.name for path in inside(there.folder)] == [
        MANIFEST,
        "server-0.safetensors",
        "server-1.safetensors",
        "worker-0.safetensors",
    ]
