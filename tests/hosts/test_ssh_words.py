"""The command line of ssh; and the errors of ssh, of a shell and of Python, as hosts without something say them."""

from __future__ import annotations

import pytest

from taihu.core.base.errors import ConfigError
from taihu.hosts.client import command_of_ssh, program_of, refusal

# As OpenSSH 9.2, dash and Python 3.11 write them.
SAID = [
    (255, "ssh: connect to host b port 22: Connection refused", "b: ssh does not reach it (ssh: connect to host b"),
    (255, "ssh: connect to host b port 22: Connection timed out", "b: ssh does not reach it ("),
    (255, "ssh: Could not resolve hostname b: Name or service not known", "b: ssh knows no such name ("),
    (255, "Warning: Permanently added 'b'.\nroot@b: Permission denied (publickey).", "b: ssh may not log in without"),
    (255, "No ED25519 host key is known for b.\nHost key verification failed.", "b: ssh does not know its key"),
    (127, "bash: line 1: /opt/python: No such file or directory", "b: there is no Python at /opt/python; install"),
    (126, "sh: 1: exec: /opt/python: Permission denied", "b: there is no Python at /opt/python; install"),
    (
        1,
        "/opt/python: Error while finding module specification for 'taihu.hosts.remote' (ModuleNotFoundError: No "
        "module named 'taihu')",
        "b: /opt/python has no taihu there; install it, or give --python",
    ),
    (
        1,
        "/opt/python: Error while finding module specification for 'taihu.hosts.remote' (ModuleNotFoundError: No "
        "module named 'taihu.hosts')",
        "b: its taihu is another version, which cannot be launched; install the one of this machine",
    ),
    (1, "unknown option -P", "b: ended with exit code 1 before it began: unknown option -P"),
    (None, "", "b: no word from it; does `ssh -F f b true` come back at once?"),
]


@pytest.mark.parametrize(("code", "words", "told"), SAID)
def test_an_error_names_the_host_and_the_remedy(code: int | None, words: str, told: str) -> None:
    line = refusal("b", code, words, "/opt/python", "ssh -F f")
    assert line.startswith(told)
    assert "\n" not in line


def test_no_password_is_asked_for_and_options_of_the_user_come_first() -> None:
    command = command_of_ssh(program_of("ssh -F 'my file' -o ConnectTimeout=2"), "b", "/opt/my python")
    assert command[:5] == ["ssh", "-F", "my file", "-o", "ConnectTimeout=2"]
    assert "BatchMode=yes" in command
    assert command[-2:] == ["b", "exec '/opt/my python' -P -m taihu.hosts.remote"]
    assert not [word for word in command if "StrictHostKeyChecking" in word]


@pytest.mark.parametrize("client", ["", "ssh 'x"])
def test_what_is_no_client(client: str) -> None:
    with pytest.raises(ConfigError, match="--ssh"):
        program_of(client)
