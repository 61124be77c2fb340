"""The command line of ssh, and its errors in words that name the host and the remedy. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from taihu.core.base.errors import ConfigError

CONNECT_S: Final = 10
"""The time that ssh has to reach a host and to log in."""

_REMOTE: Final = "taihu.hosts.remote"
_SSH_FAILED: Final = 255
_NO_PROGRAM: Final = (126, 127)
# Options of the user's own client come before these, and ssh takes the first that it finds.
_OPTIONS: Final = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_S}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)


def program_of(client: str) -> list[str]:
    """The words of a client such as `ssh -F file`.

    Raises:
        ConfigError: there are none, or quotes do not match.
    """
    try:
        words = shlex.split(client)
    except ValueError as error:
        raise ConfigError(f"--ssh {client!r}: {error}; quote it as a shell does") from None
    if not words:
        raise ConfigError("--ssh: expected a program and its options, as in 'ssh -F file'")
    return words


def command_of_ssh(client: Sequence[str], host: str, python: str) -> list[str]:
    """The command that starts the other end on `host`, by the Python there; no terminal is asked for."""
    options = [word for option in _OPTIONS for word in ("-o", option)]
    return [*client, *options, "-T", host, f"exec {shlex.quote(python)} -P -m {_REMOTE}"]


def refusal(host: str, code: int | None, words: str, python: str, client: str = "ssh") -> str:
    """The reason in one line for which a host has not begun, and the remedy.

    Args:
        host: its name.
        code: with which ssh has ended; None where it has not.
        words: what it, or the other end, has written to stderr.
        python: that was to be started there.
        client: the user's ssh.
    """
    lines = [line.strip() for line in words.splitlines() if line.strip() and not line.startswith("Warning: ")]
    last = lines[-1] if lines else ""
    if code is None:
        return f"{host}: no word from it; does `{client} {host} true` come back at once?"
    if code == _SSH_FAILED:
        return f"{host}: {_refusal_of_ssh(host, words, last, client)}"
    if code in _NO_PROGRAM:
        return f"{host}: there is no Python at {python}; install taihu there at the same place, or give --python"
    if "No module named" in words and f"'{_REMOTE.rpartition('.')[0]}'" in words:
        return f"{host}: its taihu is another version, which cannot be launched; install the one of this machine"
    if "No module named" in words:
        return f"{host}: {python} has no taihu there; install it, or give --python with the path of one that has it"
    return f"{host}: ended with exit code {code} before it began: {last}"


def _refusal_of_ssh(host: str, words: str, last: str, client: str) -> str:
    told = f" ({last})" if last else ""
    attempt = f"`{client} -o BatchMode=yes {host} true`"
    if "Host key verification failed" in words or "HOST IDENTIFICATION HAS CHANGED" in words:
        return (
            "ssh does not know its key, or knows another one: log in once by hand, compare the key, and accept it; "
            f"{attempt} must work"
        )
    if "Permission denied" in words:
        return f"ssh may not log in without a password{told}: set up a key or an agent until {attempt} works"
    if "resolve hostname" in words:
        return f"ssh knows no such name{told}: give a host's name or address, or one of ~/.ssh/config"
    return f"ssh does not reach it{told}: is it up, and does sshd listen there? {attempt} must work"
