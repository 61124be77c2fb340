"""Tokens: found, never shown, kept for other commands of the same user alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from taihu.core.base.errors import ConfigError
from taihu.core.security.token import Token, find_token, forget_token, keep_token, kept_token, new_token

SECRET = "0123456789abcdef-secret"  # noqa: S105 - of nobody


def test_a_token_is_not_shown() -> None:
    token = Token(SECRET)
    assert SECRET not in f"{token} {token!r} {[token]}"
    assert token.reveal() == SECRET
    assert token.is_said_by(SECRET)
    assert not token.is_said_by(SECRET[:-1])


def test_every_run_has_another_one() -> None:
    assert len({new_token().reveal() for _ in range(10)}) == 10


@pytest.mark.parametrize("text", ["", "short", "a" * 513, "with a blank in it", "with\nnew lines in it", "ä" * 20])
def test_what_cannot_be_metadata_is_no_token(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_token({"TAIHU_TOKEN": text}, None)
    assert "TAIHU_TOKEN" in str(caught.value)
    assert not text or text not in str(caught.value)


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    own = find_token({}, file)
    assert own is not None
    assert own.is_said_by(SECRET)
    other = find_token({"TAIHU_TOKEN": SECRET[::-1]}, file)
    assert other is not None
    assert other.is_said_by(SECRET[::-1])
    assert find_token({}, None) is None


def test_a_file_that_everybody_reads_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        find_token({}, file)
    with pytest.raises(ConfigError, match="No such file"):
        find_token({}, tmp_path / "nowhere")


def test_a_token_is_kept_while_its_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    address = "127.0.0.1:7070"
    assert kept_token(address) is None
    keep_token(Token(SECRET), address)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "taihu").iterdir()} == {0o600}
    found = kept_token(address)
    assert found is not None
    assert found.is_said_by(SECRET)
    assert kept_token("127.0.0.1:7071") is None
    forget_token(address)
    assert kept_token(address) is None


def test_a_folder_of_others_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    keep_token(Token(SECRET), "127.0.0.1:7070")
    (tmp_path / "taihu").chmod(0o755)
    assert kept_token("127.0.0.1:7070") is None
    keep_token(Token(SECRET), "127.0.0.1:7071")
    assert len(list((tmp_path / "taihu").iterdir())) == 1
