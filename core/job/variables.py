"""The names of taihu's own variables in the environment: settings, options, and what deployment and tests use.

A name that matches nothing is an error, as an unknown key of a job file is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from taihu.core.base.errors import ConfigError
from taihu.core.job import setting_keys
from taihu.core.job.mistakes import RENAMED, new_name

PREFIX: Final = "TAIHU_"
OPTIONS: Final = (
    "RANK",
    "RANK_OFFSET",
    "BIND",
    "DIRECT_PORT",
    "ADVERTISE",
    "METRICS_PORT",
    "LINGER",
    "HOLD",
    "ON_TERM",
    "JSON",
    "LOG",
    "TRACE",
    "TRACE_STEPS",
    "RUN_DIR_IS_MADE",
    "LIVES",
    "REPLACES",
    "SSH",
)
_DEPLOYMENT: Final = ("IMAGE", "JOB", "SERVERS", "WORKERS", "AGENTS", "RESTARTS", "THREADS", "RUN", "LOOK_AFTER")
_SECRETS: Final = ("TOKEN",)
_TESTS: Final = ("REWRITE",)
# Kubernetes and Docker tell every container of the services around it, whose names are their owners'.
_SERVICE_LINK: Final = re.compile(
    r"\w+_SERVICE_HOST|\w+_SERVICE_PORT(_\w+)?|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?|\w+_ENV_\w+"
)
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")


def variable_of(key: str) -> str:
    """The variable that sets a key of the job file: `TAIHU_TRAIN__STEPS` of `train.steps`."""
    return PREFIX + key.replace(".", "__").upper()


def known_variables() -> Iterator[str]:
    """All names that mean something."""
    yield from (PREFIX + name for name in (*OPTIONS, *_SECRETS, *_DEPLOYMENT, *_TESTS))
    yield from (variable_of(key) for key in ("name", *setting_keys()))


def check_variables(environment: Mapping[str, str]) -> None:
    """Accept an environment whose `TAIHU_...` names all mean something.

    Raises:
        ConfigError: one does not; the nearest name is suggested.
    """
    ours = [name for name in environment if name.startswith(PREFIX)]
    if not ours:
        return
    known = set(known_variables())
    for name in sorted(ours):
        if name not in known and not _is_service_link(name, environment[name]):
            shown = " ".join(name.split())
            raise ConfigError(f"environment variable {shown}: means nothing to taihu; {_remedy(name, known)}")


def _is_service_link(name: str, value: str) -> bool:
    is_address = name.endswith("_PORT") and _SERVICE_ADDRESS.match(value) is not None
    return is_address or _SERVICE_LINK.fullmatch(name) is not None


def _remedy(name: str, known: Iterable[str]) -> str:
    for key in RENAMED:
        if name == variable_of(key):
            return f"{new_name(key)}: {variable_of(RENAMED[key])}"
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    return f"did you mean {near[0]}?" if near else f"unset it, or name a setting as in {variable_of('train.steps')}"
