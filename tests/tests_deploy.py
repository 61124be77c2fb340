"""What the tests of deploy/ share."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

__all__ = ["DEPLOY", "free_port", "page"]

DEPLOY = Path(__file__).parents[1] / "deploy"


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(port: int) -> str:
    """The /metrics page of a daemon on this machine; empty while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""
