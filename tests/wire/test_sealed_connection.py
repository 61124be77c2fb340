"""Connections beside gRPC under TLS: both sides show who they are, and nothing travels in plain text."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.certificates import TestAuthority
from support.daemons import wait_for

from taihu.core.security.sealing import Sealing
from taihu.core.wire.base.patience import Patience
from taihu.core.wire.links.connection import Connection
from taihu.core.wire.links.direct_connection import DirectListener, connect_directly

WORDS = b"gradients of a private data set "


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    made = TestAuthority(tmp_path_factory.mktemp("certificates"))
    for place in ("server/0", "server/1", "worker/0"):
        made.sign(place)
    return made


def sealing(authority: TestAuthority, place: str, peer: str = "") -> Sealing:
    found = authority.security(place).sealing(peer)
    assert found is not None
    return found


@contextmanager
def listening(authority: TestAuthority, patience: Patience | None = None) -> Iterator[DirectListener]:
    with closing(DirectListener("127.0.0.1", 0, patience, sealing(authority, "server/0"))) as listener:
        yield listener


@contextmanager
def sealed(authority: TestAuthority) -> Iterator[tuple[Connection, Connection]]:
    """Worker 0's end, and server 0's; somebody between the two hears all that passes, and none of the words."""
    came: SimpleQueue[Connection] = SimpleQueue()
    with listening(authority) as listener:
        own, token = listener.expect(3, came.put)
        asked = sealing(authority, "worker/0", "server-0")
        with relayed(own) as (heard, relay):
            near = connect_directly("127.0.0.1", relay, token, None, asked)
            with closing(near), closing(came.get(timeout=60)) as far:
                yield near, far
    assert WORDS not in heard


@contextmanager
def relayed(port: int) -> Iterator[tuple[bytearray, int]]:
    """Somebody between the two, who hears all that passes."""
    heard, lock = bytearray(), threading.Lock()

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                with lock:
                    heard.extend(content)
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def relay(waiting: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = waiting.accept()
                far = socket.create_connection(("127.0.0.1", port))
                ends.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    ends: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as waiting:
        thread = threading.Thread(target=relay, args=(waiting,), daemon=True)
        thread.start()
        yield heard, waiting.getsockname()[1]
        waiting.shutdown(socket.SHUT_RDWR)
        thread.join()
    for end in ends:
        end.close()


def read(connection: Connection, sizes: Sequence[int]) -> list[bytes]:
    places = [bytearray(size) for size in sizes]
    assert connection.read_into([memoryview(place) for place in places])
    return [bytes(place) for place in places]


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.sampled_from([0, 1, 79, 80, 16303, 16304, 16384, 16385, 50_000, 300_000]), max_size=6),
    st.lists(st.integers(1, 40_000), max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_both_directions_bring_what_was_written_at_once(
    authority: TestAuthority, written: list[int], read_at_once: list[int], seed: int
) -> None:
    """Whatever pieces it was written in, and whatever places it is read into."""
    chance = random.Random(seed)
    buffers = [chance.randbytes(size) for size in written]
    whole = b"".join(buffers)
    with sealed(authority) as (near, far):
        for source, target in ((near, far), (far, near)):
            writing = threading.Thread(target=lambda end=source: (end.write([WORDS, *buffers]), end.end()))
            writing.start()
            assert read(target, [len(WORDS)]) == [WORDS]
            came = bytearray()
            for size in read_at_once:
                came += b"".join(read(target, [min(size, len(whole) - len(came))]))
            came += b"".join(read(target, [len(whole) - len(came)]))
            assert came == whole
            assert not target.read_into([memoryview(bytearray(1))])
            writing.join()


def test_an_end_within_a_frame_is_told(authority: TestAuthority) -> None:
    with sealed(authority) as (near, far):
        near.write([b"half"])
        near.end()
        with pytest.raises(ConnectionResetError, match="within a frame"):
            far.read_into([memoryview(bytearray(8))])


def test_a_cut_ends_both_directions_and_sends_nothing_in_plain_text(authority: TestAuthority) -> None:
    """While a thread writes: what Python's sockets send behind a shutdown would be in plain text."""
    with sealed(authority) as (near, far):
        broke = threading.Event()

        def write() -> None:
            try:
                while True:
                    near.write([1000 * WORDS])
            except OSError:
                broke.set()

        writing = threading.Thread(target=write)
        writing.start()
        read(far, [100_000])
        near.cut()
        assert broke.wait(60)
        writing.join()
        with suppress(OSError):
            while far.skip(memoryview(bytearray(1 << 16))):
                pass
        assert not far.is_open()


def test_who_is_open_is_seen_without_a_read(authority: TestAuthority) -> None:
    with sealed(authority) as (near, far):
        assert far.is_open()
        near.write([b"one", b"two"])
        assert read(far, [3]) == [b"one"]
        near.close()
        assert far.is_open()
        assert read(far, [3]) == [b"two"]
        wait_for(lambda: not far.is_open(), "the end is not seen")


def test_no_kernel_gets_a_socket_under_tls(authority: TestAuthority) -> None:
    with sealed(authority) as (near, _):
        assert near.alone() is None


Asked = Callable[[TestAuthority, Path], Sealing | None]
STRANGERS: dict[str, Asked] = {
    "speaks plain text": lambda authority, folder: None,
    "takes the server for another one": lambda authority, folder: sealing(authority, "worker/0", "server-1"),
    "believes in another authority": lambda authority, folder: authority.security(
        "worker/0", ca=another(folder).folder / "ca.pem"
    ).sealing("server-0"),
    "has a certificate of another authority": lambda authority, folder: (
        another(folder).security("worker/0", ca=authority.folder / "ca.pem").sealing("server-0")
    ),
}


def another(folder: Path) -> TestAuthority:
    made = TestAuthority(folder / "another")
    made.sign("worker/0")
    return made


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_get_no_connection_whatever_token_they_know(
    kind: str, authority: TestAuthority, tmp_path: Path
) -> None:
    came: SimpleQueue[Connection] = SimpleQueue()
    with listening(authority, Patience(2.0)) as listener:
        port, token = listener.expect(3, came.put)
        with pytest.raises(OSError):  # noqa: PT011 - of TLS, or a reset
            connect_directly("127.0.0.1", port, token, Patience(6.0), STRANGERS[kind](authority, tmp_path))
        assert came.empty()
        connect_directly("127.0.0.1", port, token, None, sealing(authority, "worker/0", "server-0")).close()
        came.get(timeout=60).close()


def test_half_a_connection_is_given_up_with_its_token(authority: TestAuthority) -> None:
    came: SimpleQueue[Connection] = SimpleQueue()
    asked = sealing(authority, "worker/0", "server-0")
    with listening(authority) as listener:
        port, token = listener.expect(3, came.put)
        with asked.ask(socket.create_connection(("127.0.0.1", port), timeout=60)) as half:
            half.sendall(token)
            assert half.recv(1) == b"\x01"
            _, later = listener.expect(3, came.put)
            assert half.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            connect_directly("127.0.0.1", port, token, None, asked)
        assert came.empty()
        connect_directly("127.0.0.1", port, later, None, asked).close()
        came.get(timeout=60).close()


def test_renewed_certificates_count_at_the_next_connection(tmp_path: Path) -> None:
    """Those of another authority, in the same files: whoever kept the former ones would be refused."""
    came: SimpleQueue[Connection] = SimpleQueue()
    own = renewed(tmp_path)
    asked = sealing(own, "worker/0", "server-0")
    with listening(own) as listener:
        for _ in range(2):
            port, token = listener.expect(3, came.put)
            connect_directly("127.0.0.1", port, token, None, asked).close()
            came.get(timeout=60).close()
            renewed(tmp_path)


def renewed(folder: Path) -> TestAuthority:
    made = TestAuthority(folder)
    for place in ("server/0", "worker/0"):
        made.sign(place)
    return made
