"""The token of a run: a secret that its processes share, for who has no certificate."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.process.lives import LIFE, is_over, own_life
from taihu.core.system.chance import random_text

TOKEN_VARIABLE: Final = "TAIHU_TOKEN"  # noqa: S105 - a name
_BYTES: Final = 32
_FORM: Final = re.compile(r"[!-~]{16,512}")


class Token:
    """A secret text, which is never shown.

    Raises:
        ConfigError: it is too short, or has other characters than those that metadata carry; `source` is named.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str, source: str = "the token") -> None:
        if _FORM.fullmatch(text) is None:
            raise ConfigError(
                f"{source}: expected 16 to 512 visible ASCII characters, for example what "
                '`python -c "import secrets; print(secrets.token_urlsafe(32))"` writes'
            )
        self._text = text

    def reveal(self) -> str:
        """The text, for whoever sends it or hands it to a process."""
        return self._text

    def is_said_by(self, text: str | None) -> bool:
        """Whether `text` is the token; takes as long whatever is wrong with it."""
        return text is not None and compare_digest(text.encode(), self._text.encode())

    def __repr__(self) -> str:
        return "Token(...)"


def new_token() -> Token:
    """A token that nobody can guess."""
    return Token(random_text(_BYTES))


def find_token(environment: Mapping[str, str], file: Path | None) -> Token | None:
    """The token in the environment, else that in `file`; None without either.

    Raises:
        ConfigError: it cannot be read, is none, or others may read the file.
    """
    if TOKEN_VARIABLE in environment:
        return Token(environment[TOKEN_VARIABLE].strip(), f"environment variable {TOKEN_VARIABLE}")
    if file is None:
        return None
    return Token(read_secret(file, "security.token_file").decode(errors="replace").strip(), f"token file {file}")


def read_secret(path: Path, key: str) -> bytes:
    """The contents of a file that not everybody may read; raises ConfigError where they do, or it cannot be read."""
    try:
        if path.stat().st_mode & stat.S_IRWXO:
            raise ConfigError(f"{key} {path}: every user of this machine can use it; chmod 600 {path}")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key} {path}: {error.strerror}; check the path, or run `taihu certs`") from None


def keep_token(token: Token, address: str) -> None:
    """Keep the token of the run at `address` for other commands of this user, for as long as it goes on.

    Where no folder of this user's own can be had it is not kept; they need TAIHU_TOKEN then.
    """
    with suppress(OSError):
        folder = _own_folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _is_private(folder):
            return
        life = ""
        with suppress(OSError):  # elsewhere than on Linux nobody knows whose it was
            life = own_life()
        _forget_left_over(folder)
        place = _place(folder, address)
        part = place.with_suffix(f".{os.getpid()}")
        part.unlink(missing_ok=True)
        part.touch(0o600, exist_ok=False)
        part.write_text(f"{token.reveal()}\n{life}\n")
        part.replace(place)


def _forget_left_over(folder: Path) -> None:
    """Remove tokens of runs whose process was killed before it could."""
    for path in folder.glob("*.token"):
        with suppress(OSError):
            life = path.read_text().partition("\n")[2].strip()
            if re.fullmatch(LIFE, life, re.ASCII) and is_over(life):
                path.unlink(missing_ok=True)


def forget_token(address: str) -> None:
    """The run at `address` has ended."""
    with suppress(OSError):
        _place(_own_folder(), address).unlink()


def kept_token(address: str) -> Token | None:
    """The token of a run of this user's at `address` on this machine; None where none is kept."""
    folder = _own_folder()
    with suppress(OSError, ConfigError):
        if _is_private(folder):
            return Token(_place(folder, address).read_text().partition("\n")[0])
    return None


def _own_folder() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and Path(given).is_dir():
        return Path(given) / "taihu"
    return Path(tempfile.gettempdir()) / f"taihu-run-{os.geteuid()}"


def _is_private(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _place(folder: Path, address: str) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9.]', '-', address)}.token"
