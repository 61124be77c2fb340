"""Signals: their numbers, who handles them, which are held back, and sending them."""

from __future__ import annotations

from signal import (
    ITIMER_REAL,
    SIG_BLOCK,
    SIG_DFL,
    SIG_SETMASK,
    SIG_UNBLOCK,
    SIGCONT,
    SIGINT,
    SIGKILL,
    SIGPIPE,
    SIGSTOP,
    SIGTERM,
    SIGURG,
    Signals,
    default_int_handler,
    pidfd_send_signal,
    pthread_kill,
    pthread_sigmask,
    set_wakeup_fd,
    setitimer,
)
from signal import getsignal as handler_of
from signal import signal as set_handler

__all__ = [
    "ITIMER_REAL",
    "SIGCONT",
    "SIGINT",
    "SIGKILL",
    "SIGPIPE",
    "SIGSTOP",
    "SIGTERM",
    "SIGURG",
    "SIG_BLOCK",
    "SIG_DFL",
    "SIG_SETMASK",
    "SIG_UNBLOCK",
    "Signals",
    "default_int_handler",
    "handler_of",
    "pidfd_send_signal",
    "pthread_kill",
    "pthread_sigmask",
    "set_handler",
    "set_wakeup_fd",
    "setitimer",
]
