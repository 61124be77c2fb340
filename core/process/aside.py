"""A question that a child of this process answers, which ends then.

The libraries that read a user's files start threads and open files. A process whose forks are to become daemons has
them read elsewhere, and stays as it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from taihu.core.base import errors
from taihu.core.base.errors import RunError, TaihuError
from taihu.core.process.forking import can_fork, end_as_program
from taihu.core.system.memory import c_library
from taihu.core.system.processes import fork
from taihu.core.system.signals import SIG_DFL, SIGINT, SIGKILL, Signals, set_handler

_PR_SET_PDEATHSIG: Final = 1


def asked_aside(question: Callable[[], Any], what: str) -> Any:
    """The answer of `question`, of what JSON knows; called in a child where this process can be forked, else here.

    Args:
        question: reads, and changes nothing.
        what: it does, in words that follow "while".

    Raises:
        TaihuError: that of the question, by its class of `taihu.core.base.errors` and its message.
        RunError: the child ended without an answer.
    """
    if not can_fork():
        return question()
    read, write = os.pipe()
    pid = fork()
    if pid == 0:
        os.close(read)
        _answer(question, write)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as pipe:
            told = pipe.read()
    except BaseException:
        os.kill(pid, SIGKILL)
        raise
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not told:
        end = f"was killed by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise RunError(f"a process of taihu {end} while {what}")
    name, answer = json.loads(told)
    if name:
        raise getattr(errors, name)(answer)
    return answer


def _answer(question: Callable[[], Any], write: int) -> NoReturn:
    """The whole life of the child."""

    def tell() -> None:
        with suppress(AttributeError, OSError):  # elsewhere than on Linux it may outlive who asked by a moment
            c_library().prctl(_PR_SET_PDEATHSIG, SIGKILL)
        try:
            told = ["", question()]
        except TaihuError as error:
            known = (each.__name__ for each in type(error).__mro__ if each.__name__ in errors.__all__)
            told = [next(known), str(error)]
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(told).encode())

    set_handler(SIGINT, SIG_DFL)  # at a terminal it is for the asking process, too, which tells of it
    end_as_program(tell)
