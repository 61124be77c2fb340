"""The token of a run on this machine: made for it, and kept for other commands of the same user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from taihu.core.job import Job
from taihu.core.job.security import security_of
from taihu.core.security.security import Security
from taihu.core.security.token import forget_token, keep_token, new_token


def security_of_run(job: Job) -> Security:
    """The means of whoever starts all processes of `job`: with a new token, unless one was given."""
    own = security_of(job, "operator", 0)
    return own if own.token is not None else own.with_token(new_token())


@contextmanager
def kept_for_commands(security: Security, coordinator: str) -> Iterator[None]:
    """During the block, commands that this user gives find the token of the run at `coordinator`."""
    if security.token is not None:
        keep_token(security.token, coordinator)
    try:
        yield
    finally:
        forget_token(coordinator)
