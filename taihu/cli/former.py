"""Spellings of commands that were others once: each is an error that names the one of now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final

from typer.core import TyperGroup

from taihu.core.base.errors import ConfigError

Former = Callable[[Sequence[str]], str | None]
"""Of the words behind a group's name: the command that they are of now, None where they were never any."""

_VERSION: Final = "taihu --version"
_MOVED: Final = MappingProxyType(
    {name: f"taihu dev {name}" for name in ("bench", "chaos", "history")} | {"version": _VERSION}
)
_OPTIONS: Final = MappingProxyType(
    {
        ("certs", "--dir"): "--out",
        ("search", "--write"): "--out",
        ("run", "--picture"): "--out",
        ("figure", "--picture-dir"): "--out",
    }
)


class CommandGroup(TyperGroup):
    """A group of commands that knows how it was called before."""

    def __init__(self, former: Former | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._former = former

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words of the command line.

        Raises:
            ConfigError: they are of a command that has another name now.
        """
        known = self.list_commands(ctx)
        if args and args[0] not in known and self._former is not None and (now := self._former(args)) is not None:
            page = now if now != _VERSION else "taihu"
            raise ConfigError(f"{ctx.command_path} {args[0]}: it is {now} now; see '{page} --help'")
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


def former_command(words: Sequence[str]) -> str | None:
    """Commands that are below `dev` now."""
    return _MOVED.get(words[0])


def former_plan(words: Sequence[str]) -> str | None:
    """`taihu plan` was one command of three kinds."""
    if not _was_meant(words[0]):
        return None
    given = {word.partition("=")[0] for word in words}
    if "--search" in given:
        return "taihu plan search"
    return "taihu plan memory" if "--memory" in given else "taihu plan step"


def former_simulate(words: Sequence[str]) -> str | None:
    """`taihu simulate` took a job, or the word figure."""
    return "taihu simulate run" if _was_meant(words[0]) else None


def _was_meant(word: str) -> bool:
    """Whether it is an option or a file, and not another command with a mistake in it."""
    return word not in {"-h", "--help", "--version"} and (word.startswith("-") or word.endswith((".json", ".toml")))


def former_option(command: str, option: str, *, takes_set: bool) -> str | None:
    """The name now of an option that a command had; None where it had none of that name.

    All commands with a job once had the flags of one that runs it: what `takes_set` sets their keys by `--set`.
    """
    if (now := _OPTIONS.get((command, option))) is not None:
        return now
    if not takes_set:
        return None
    from taihu.core.job.flags import flags_by_key  # noqa: PLC0415 - costs the time to import all settings

    return next((f"--set {key}=..." for key, flag in flags_by_key().items() if flag == option), None)
