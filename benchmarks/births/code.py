"""Code of a commit beside that of today: files of which more has changed than words about them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["Checkout", "is_same_code"]


class Checkout:
    """A checkout of the project, and its history as far as it has one."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def lack(self) -> str | None:
        """The reason why commits cannot be compared with the files here; None where they can."""
        try:
            top = self._git("rev-parse", "--show-toplevel")
        except OSError:
            return "git is not here"
        if top is None or Path(top.strip()) != self._root.resolve():
            return "this is no checkout of git"
        return "the history of this checkout is shallow" if self._is_shallow() else None

    def has(self, commit: str) -> bool:
        """Tell whether a commit is in the history."""
        return self._git("cat-file", "-e", f"{commit}^{{commit}}") is not None

    def head(self) -> str | None:
        """The commit that is checked out, in 12 digits; None where there is no history."""
        told = self._git("rev-parse", "--short=12", "HEAD")
        return None if told is None else told.strip()

    def uncommitted(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Files below paths that differ from the commit that is checked out, or that it lacks."""
        told = self._git("status", "--porcelain", "--no-renames", "--untracked-files=all", "--", *paths) or ""
        return tuple(line[3:].strip('"') for line in told.splitlines())

    def changed(self, commit: str, paths: Sequence[str]) -> Iterator[str]:
        """Files below paths whose code differs from that of a commit, by their names; files that are gone, too."""
        for name in (self._git("diff", "--name-only", "--no-renames", commit, "--", *paths) or "").splitlines():
            path = self._root / name
            now = path.read_bytes() if path.is_file() else None
            if not is_same_code(name, self._bytes("show", f"{commit}:{name}"), now):
                yield name

    def commits_since(self, commit: str, paths: Sequence[str]) -> int:
        """The number of commits since one that touch paths."""
        return int(self._git("rev-list", "--count", f"{commit}..HEAD", "--", *paths) or 0)

    def versions(self, path: Path) -> Iterator[tuple[str, str, bytes]]:
        """The commits that changed a file, oldest first, wherever it stood: commit, day, the file's bytes then."""
        form = ("--format=@%h %ad", "--date=short", "--abbrev=12", "--name-only")
        lines = (self._git("log", "--follow", *form, "--", str(path)) or "").splitlines()
        listed = [line for line in lines if line]
        for head, name in reversed(list(zip(listed[::2], listed[1::2], strict=False))):
            commit, _, day = head.removeprefix("@").partition(" ")
            held = self._bytes("show", f"{commit}:{name}")
            if held is not None:
                yield commit, day, held

    def _is_shallow(self) -> bool:
        return (self._git("rev-parse", "--is-shallow-repository") or "").strip() == "true"

    def _git(self, *arguments: str) -> str | None:
        """The words of git's answer; None where it has none."""
        told = self._bytes(*arguments)
        return None if told is None else told.decode()

    def _bytes(self, *arguments: str) -> bytes | None:
        done = subprocess.run(["git", *arguments], cwd=self._root, capture_output=True, check=False)  # noqa: S607
        return done.stdout if done.returncode == 0 else None


def is_same_code(name: str, then: bytes | None, now: bytes | None) -> bool:
    """Tell whether two versions of a file compute the same: comments, docstrings and layout of Python are no code."""
    if then is None or now is None or not name.endswith(".py"):
        return then == now
    return then == now or _code(then) == _code(now)


def _code(source: bytes) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)
