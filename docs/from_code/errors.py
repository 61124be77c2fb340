"""Errors: exit codes, classes, and messages with cause and remedy; each message is looked up in the code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import taihu.errors
from from_code.cells import code, table
from taihu.core.process.entry import EXIT_INTERRUPTED
from taihu.core.process.streams import ReaderGoneError
from taihu.errors import TaihuError

_ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("core", "worker", "ps_server", "allreduce", "taihu")
_HEAD: Final = """\
# Errors

Every error is one line on standard error: the thing, what was expected and seen, and the remedy. A daemon's
line begins with its role. The first line that names a cause counts; the others end because of it. Logs of all
processes: `taihu logs`.

This page is made from the code: `make reference`.

## Exit codes
"""
_MESSAGES: Final = (
    (
        "no answer within",
        "Nobody listens at the coordinator's address, or a firewall drops calls.",
        "Start server 0 (in a ring worker 0) there. Look with `taihu doctor --peers HOST:PORT`. Where machines "
        "start late, raise `cluster.connect_timeout_s`.",
    ),
    (
        "the port is in use or the address is not this machine's",
        "A former run still listens, or `--bind` names another machine.",
        "End the former run (`taihu stop`), or choose another port; port 0 takes a free one.",
    ),
    (
        "has no taihu there",
        "`taihu launch` finds another Python on that host.",
        "Install taihu there at the same path, or say where it is: `--python PATH`.",
    ),
    (
        "ssh may not log in without a password",
        "ssh would ask, and nobody is there to answer.",
        "`ssh-copy-id HOST`, until `ssh -o BatchMode=yes HOST true` works.",
    ),
    (
        "as here; install the same version",
        "Hosts have different versions of taihu.",
        "Install one version on all of them.",
    ),
    (
        "is of another version of taihu",
        "A process with another version wants to join the run.",
        "Install one version on all machines.",
    ),
    (
        "unknown key",
        "A key of the job file or of `--set` is misspelt.",
        "Take the name that the line suggests; `taihu job --defaults` lists all.",
    ),
    (
        "means nothing to taihu",
        "A variable `TAIHU_...` is misspelt.",
        "Take the suggested name, or unset it ([environment](environment.md)).",
    ),
    (
        "needs scikit-learn",
        "A package is missing that this data set needs. Others are told likewise.",
        "Install the extra that the line names, such as `pip install 'taihu[demo]'`.",
    ),
    (
        "was lost: its connection broke",
        "Another process died, or its host or link did.",
        "Look at that member's log. A run with checkpoints goes on by itself ([recovery](../howto/recovery.md)).",
    ),
    (
        "no heartbeat for",
        "A member was silent for `cluster.lost_after_s`: its host hangs, sleeps or is cut off.",
        "Look at the host. On a busy machine raise `cluster.lost_after_s`.",
    ),
    (
        "nothing has moved for",
        "All wait, and nobody makes progress. The line names who waits for nobody: that process is stuck.",
        "Look at its log; often a script waits for input, a lock or a collective that others do not call.",
    ),
    (
        "give all workers as many batches",
        "One worker's loader has fewer batches than the others'.",
        "Use `DistributedSampler` or `ElasticSampler`, or iterate in `with optimizer.join()`.",
    ),
    (
        "within an hour are used up",
        "Processes died more often than `checkpoint.restarts` allows.",
        "Find out why; then go on by the command that the line shows.",
    ),
    (
        "the workers' parameters differ",
        "A script changed parameters or gradients of one worker alone; or hardware fails.",
        "Do the same on all workers. Seeds, dropout and data may differ, updates may not.",
    ),
    (
        "taihu.torch is initialized already",
        "`init` came behind another function of `taihu.torch`.",
        "Call `init` before everything else.",
    ),
    (
        "the state is not kept: no checkpoint.dir names a folder for it",
        "A script with a state was started by torchrun, mpirun or srun.",
        "Set `TAIHU_CHECKPOINT__DIR` to a folder that all hosts share.",
    ),
    (
        "no certificate that holds here, or no TLS",
        "A caller speaks plain text, or has a certificate of another authority.",
        "Give all processes the same `[security]`, and files of one authority ([TLS](../howto/tls.md)).",
    ),
    (
        "processes would share",
        "`/dev/shm` is too small, as in containers by default.",
        "`mount -o remount,size=50% /dev/shm`, or `--shm-size` of the container.",
    ),
    (
        "agents need checkpoint.dir",
        "`taihu agent` was started without a folder for checkpoints.",
        "Set `checkpoint.dir` to a folder that all machines share.",
    ),
)


def page() -> str:
    """The page of exit codes, messages and classes."""
    parts = [_HEAD, *table(("code", "meaning"), _codes()), "", "## Messages", ""]
    parts += ["Parts of messages, in the order in which a new user meets them.", ""]
    parts += table(("message", "cause", "remedy"), _messages())
    parts += [
        "",
        "## Classes",
        "",
        "From Python, all are in `taihu.errors`. `exit_code` is the code of a command.",
        "",
    ]
    parts += table(("class", "is a", "exit code", "meaning"), _classes())
    return "\n".join(parts) + "\n"


def _codes() -> Iterator[tuple[str, str]]:
    yield "0", "done"
    yield str(taihu.errors.RunError.exit_code), "the run failed"
    yield str(taihu.errors.ConfigError.exit_code), "wrong usage, job, data or model; nothing was trained"
    yield str(EXIT_INTERRUPTED), "stopped by Ctrl-C or SIGTERM before the last step"
    yield str(ReaderGoneError.exit_code), "standard output has no reader any more"
    yield "143", "`taihu run` and `taihu launch`: stopped by SIGTERM"
    yield "others", "`taihu run` and `taihu launch`: the code of the script's worker that is to blame"


def _messages() -> Iterator[tuple[str, str, str]]:
    source = "\n".join(
        path.read_text(encoding="utf-8") for folder in _PACKAGES for path in sorted((_ROOT / folder).rglob("*.py"))
    )
    for message, cause, remedy in _MESSAGES:
        if message not in source:
            raise LookupError(f"no message of the code says {message!r}: mend docs/from_code/errors.py")
        yield code(message), cause, remedy


def _classes() -> Iterator[tuple[str, str, str, str]]:
    for name in sorted(taihu.errors.__all__):
        kind = getattr(taihu.errors, name)
        if isinstance(kind, type) and issubclass(kind, TaihuError):
            base = "" if kind is TaihuError else code(kind.__mro__[1].__name__)
            yield code(name), base, str(kind.exit_code), (inspect.getdoc(kind) or "").partition("\n\n")[0]
