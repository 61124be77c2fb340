"""The connection to one host: ssh's process, orders to its other end, and the words from there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import IO, Any, Final, Protocol

from taihu.core.base.errors import ConfigError, RunError
from taihu.core.system.clocks import monotonic
from taihu.core.system.processes import PIPE, Popen, TimeoutExpired
from taihu.core.system.queues import Empty, SimpleQueue
from taihu.core.system.threads import Event, Lock, Thread, spawn
from taihu.hosts.client import command_of_ssh, refusal
from taihu.hosts.frames import BEAT_S, Lines, bytes_in, frame
from taihu.hosts.likeness import HostFacts

_PIECE: Final = 1 << 16
_ANSWER_S: Final = 60.0
_POLL_S: Final = 0.05
_KEPT_WORDS: Final = 1 << 14


class Listener(Protocol):
    """Hears, in a thread of each connection, of what happens on its host."""

    def logged(self, name: str, piece: bytes) -> None:
        """A process has written to its log."""

    def left(self, file: str, content: bytes) -> None:
        """A process has left a file, or another content of it."""

    def ended(self, name: str, code: int, given_up: str) -> None:
        """A process has ended."""

    def lost(self, host: str, words: str) -> None:
        """The connection has ended."""


class Connection:
    """A host that ssh is reaching, or has reached; `facts` are there when it has.

    Args:
        host: its name.
        client: ssh and the user's options.
        python: the Python there.
        look: the order with which it begins.
    """

    def __init__(self, host: str, client: Sequence[str], python: str, look: Mapping[str, Any]) -> None:
        self.host = host
        self._client = client
        self._python = python
        self._listener: Listener | None = None
        self._facts: SimpleQueue[HostFacts] = SimpleQueue()
        self._answers: dict[int, SimpleQueue[dict[str, Any]]] = {}
        self._numbers = count(1)
        self._lock = Lock()
        self._words = b""
        self._over = Event()
        try:
            # A terminal's Ctrl-C is the launcher's, who tells the hosts.
            self._ssh = Popen(
                command_of_ssh(client, host, python),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                f"--ssh: {client[0]} cannot be started ({error.strerror}); install OpenSSH's client, or name it"
            ) from None
        self._threads = [self._thread(self._read), self._thread(self._keep_words), self._thread(self._beat)]
        self.order("look", **look)

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended."""
        return self._over.is_set()

    def facts(self, until_s: float) -> HostFacts:
        """The facts of the host, when it has told them; raises ConfigError where it has not by then."""
        while True:
            with suppress(Empty):
                return self._facts.get(timeout=_POLL_S)
            if self.is_over or monotonic() > until_s:
                raise ConfigError(self._refusal())

    def listen(self, listener: Listener) -> None:
        """Have somebody told of what happens; nothing has before the order to `open`."""
        self._listener = listener

    def order(self, what: str, /, **words: Any) -> None:
        """Give an order; nobody hears it where the connection has ended, which the listener is told."""
        with self._lock, suppress(OSError, ValueError):
            stdin = _stream(self._ssh.stdin)
            stdin.write(frame({"order": what, **words}))
            stdin.flush()

    def ask(self, what: str, /, **words: Any) -> Any:
        """The answer to an order; raises RunError where the host says that it cannot, or says nothing."""
        number, queue = next(self._numbers), SimpleQueue[dict[str, Any]]()
        self._answers[number] = queue
        self.order(what, answer=number, **words)
        deadline = monotonic() + _ANSWER_S
        while True:
            with suppress(Empty):
                answer = queue.get(timeout=_POLL_S)
                if (error := answer.get("error")) is not None:
                    raise RunError(f"{self.host}: {error}")
                return answer["value"]
            if self.is_over or monotonic() > deadline:
                raise RunError(f"{self.host}: {self._end_in_words()}")

    def close(self, grace_s: float) -> None:
        """End the processes there, and the connection; ssh itself at once where that takes longer than `grace_s`."""
        self._listener = None
        with self._lock, suppress(OSError, ValueError):
            _stream(self._ssh.stdin).close()
        try:
            self._ssh.wait(grace_s)
        except TimeoutExpired:
            self._ssh.kill()
        self._ssh.wait()
        self._over.set()
        for thread in self._threads:
            thread.join()
        for stream in (self._ssh.stdout, self._ssh.stderr):
            _stream(stream).close()

    def _thread(self, work: Callable[[], None]) -> Thread:
        return spawn(f"ssh {self.host}", work)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            self.order("beat")

    def _read(self) -> None:
        lines, stdout = Lines(), _stream(self._ssh.stdout)
        while piece := stdout.read1(_PIECE):
            for words in lines.add(piece):
                self._hear(words)
        self._ssh.wait()
        self._over.set()
        if (listener := self._listener) is not None:
            listener.lost(self.host, self._end_in_words())

    def _hear(self, words: dict[str, Any]) -> None:
        if "facts" in words:
            told = words["facts"]
            self._facts.put(HostFacts(**{**told, "interfaces": tuple(told["interfaces"])}))
        elif "answer" in words:
            self._answers.pop(words["answer"]).put(words)
        elif "output" in words:
            _write(words["output"], bytes_in(words["data"]))
        elif (listener := self._listener) is None:
            return
        elif "log" in words:
            listener.logged(words["log"], bytes_in(words["data"]))
        elif "file" in words:
            listener.left(words["file"], bytes_in(words["data"]))
        elif "ended" in words:
            listener.ended(words["ended"], words["code"], words["given_up"])

    def _keep_words(self) -> None:
        stderr = _stream(self._ssh.stderr)
        while piece := stderr.read1(_PIECE):
            self._words = (self._words + piece)[-_KEPT_WORDS:]

    def _refusal(self) -> str:
        code = self._ssh.poll()
        if code is not None:
            self._threads[1].join(1.0)
        client = " ".join(self._client)
        return refusal(self.host, code, self._words.decode(errors="replace"), self._python, client)

    def _end_in_words(self) -> str:
        code = self._ssh.poll()
        if code is None:
            return f"no answer within {_ANSWER_S:g} s"
        self._threads[1].join(1.0)
        lines = self._words.decode(errors="replace").strip().splitlines()
        return f"ssh ended with exit code {code}" + (f" ({lines[-1].strip()})" if lines else "")


def _stream(stream: IO[bytes] | None) -> Any:
    assert stream is not None  # noqa: S101
    return stream


def _write(number: int, content: bytes) -> None:
    """Write where this process's output goes; a reader that has gone is told of when the run ends."""
    stream = (sys.stdout if number == 1 else sys.stderr).buffer
    with suppress(OSError, ValueError):
        stream.write(content)
        stream.flush()
