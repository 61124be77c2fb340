"""Sockets: the same on this machine and in memory."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.worlds import GUARD_S, World, everywhere


@contextmanager
def connected(world: World) -> Iterator[tuple[Any, Any]]:
    """Both sockets of a connection: of who connected, and of who listened."""
    with world.sockets.create_server(("127.0.0.1", 0)) as listening:
        near = world.sockets.create_connection(listening.getsockname(), timeout=GUARD_S)
        far, address = listening.accept()
        assert address == near.getsockname()
    # With a timeout, Python asks the kernel for what is there already.
    near.settimeout(None)
    with near, far:
        yield near, far


def read(connection: Any, size: int) -> bytes:
    """Bytes of that number, in however many parts they come."""
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        assert part
        parts += part
    return parts


def number_of(act: Callable[[], Any]) -> int:
    """The number of the error that `act` ends with."""
    try:
        act()
    except OSError as error:
        return error.errno or 0
    raise AssertionError("no error")


@everywhere
def test_bytes_come_in_order_both_ways(world: World) -> None:
    with connected(world) as (near, far):
        near.sendall(b"abc")
        near.sendall(b"def")
        assert read(far, 6) == b"abcdef"
        far.sendall(b"x" * 1000)
        assert read(near, 1) == b"x"
        assert read(near, 999) == b"x" * 999


@everywhere
def test_both_ends_know_their_names(world: World) -> None:
    with world.sockets.create_server(("", 0)) as listening:
        host, port = listening.getsockname()
        assert ipaddress.ip_address(host).is_unspecified
        assert port > 0
        near = world.sockets.create_connection(("localhost", port))
        far, address = listening.accept()
        assert near.getpeername() == ("127.0.0.1", port) == far.getsockname()
        assert near.getsockname() == address == far.getpeername()
        assert near.family == socket.AF_INET
        near.close()
        far.close()


@everywhere
def test_many_bytes_come_while_they_are_read(world: World) -> None:
    size = 2_000_000
    data = bytes(range(256)) * (size // 256)
    with connected(world) as (near, far):
        sending = world.start(near.sendall, data)
        assert read(far, len(data)) == data
        sending.join(GUARD_S)
        assert not sending.is_alive()


@everywhere
def test_sent_data_may_change_afterwards(world: World) -> None:
    with connected(world) as (near, far):
        data = bytearray(b"abc")
        near.sendall(data)
        data[:] = b"xyz"
        assert near.sendmsg([memoryview(b"de"), b"", bytearray(b"f")]) == 3
        assert read(far, 6) == b"abcdef"


@everywhere
def test_places_are_filled_one_after_another(world: World) -> None:
    with connected(world) as (near, far):
        first, second = bytearray(4), bytearray(3)

        def send() -> None:
            for each in (b"ab", b"cde", b"f", b"g!"):
                near.sendall(each)
                world.clocks.sleep(0.002)

        sending = world.start(send)
        count, ancillary, _, _ = far.recvmsg_into([first, memoryview(second)], 0, socket.MSG_WAITALL)
        assert (count, ancillary) == (7, [])
        assert (bytes(first), bytes(second)) == (b"abcd", b"efg")
        assert far.recv(5) == b"!"
        sending.join()
        near.shutdown(socket.SHUT_WR)
        assert far.recvmsg_into([first], 0, socket.MSG_WAITALL)[0] == 0


@everywhere
def test_an_end_comes_before_the_places_are_full(world: World) -> None:
    with connected(world) as (near, far):
        place = bytearray(4)
        near.sendall(b"ab")
        near.shutdown(socket.SHUT_WR)
        assert far.recvmsg_into([place], 0, socket.MSG_WAITALL)[0] == 2
        assert far.recv_into(place) == 0


@everywhere
def test_receiving_into_a_part_of_a_buffer(world: World) -> None:
    with connected(world) as (near, far):
        near.sendall(b"abcdef")
        place = bytearray(b"......")
        world.until(lambda: len(far.recv(6, socket.MSG_PEEK)) == 6)
        assert far.recv_into(place, 2) == 2
        assert place == b"ab...."
        assert far.recv_into(memoryview(place)[2:]) == 4
        assert place == b"abcdef"


@everywhere
def test_looking_takes_nothing(world: World) -> None:
    glance = socket.MSG_PEEK | socket.MSG_DONTWAIT
    with connected(world) as (near, far):
        with pytest.raises(BlockingIOError):
            far.recv(1, glance)
        near.sendall(b"ab")
        assert far.recv(1, socket.MSG_PEEK) == b"a"
        assert far.recv(1, glance) == b"a"
        assert read(far, 2) == b"ab"
        near.close()
        assert far.recv(1, socket.MSG_PEEK) == b""
        assert far.recv(1, glance) == b""


@everywhere
def test_timeouts(world: World) -> None:
    with connected(world) as (near, far):
        far.settimeout(0.02)
        assert far.gettimeout() == 0.02
        with pytest.raises(TimeoutError):
            far.recv(1)
        with pytest.raises(TimeoutError):
            far.recv(1, socket.MSG_DONTWAIT)
        near.sendall(b"ab")
        world.until(lambda: len(far.recv(2, socket.MSG_PEEK)) == 2)
        assert far.recvmsg_into([bytearray(3)], 0, socket.MSG_WAITALL)[0] == 2
        far.setblocking(False)
        assert far.gettimeout() == 0.0
        with pytest.raises(BlockingIOError):
            far.recv(1)
        far.settimeout(None)
        world.start(lambda: (world.clocks.sleep(0.02), near.sendall(b"a")))
        assert far.recv(1) == b"a"
    with world.sockets.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.02)
        with pytest.raises(TimeoutError):
            listening.accept()
        with pytest.raises(ValueError, match="out of range"):
            listening.settimeout(-1)


@everywhere
def test_buffers_are_bounded(world: World) -> None:
    with connected(world) as (near, far):
        near.settimeout(0.05)
        part, sent = b"x" * 100_000, [0]

        def fill() -> None:
            while sent[-1] < 1000 * len(part):
                sent.append(sent[-1] + near.send(part))

        with pytest.raises(TimeoutError):
            fill()
        assert 0 < sent[-1] < 1000 * len(part)
        near.settimeout(GUARD_S)
        reading = world.start(read, far, sent[-1] + len(part))
        near.sendall(part)
        reading.join(GUARD_S)
        assert not reading.is_alive()


@everywhere
def test_half_an_end_leaves_the_other_direction(world: World) -> None:
    with connected(world) as (near, far):
        near.sendall(b"last")
        near.shutdown(socket.SHUT_WR)
        assert read(far, 4) == b"last"
        assert far.recv(1) == b""
        assert far.recv(1) == b""
        far.sendall(b"answer")
        assert read(near, 6) == b"answer"
        with pytest.raises(BrokenPipeError):
            near.sendall(b"more")
        far.close()
        assert near.recv(1) == b""


@everywhere
def test_shutting_down_wakes_who_reads(world: World) -> None:
    with connected(world) as (near, far):
        got: Any = world.queues.SimpleQueue()
        reading = world.start(lambda: got.put(far.recv(1)))
        world.clocks.sleep(0.01)
        far.shutdown(socket.SHUT_RDWR)
        assert got.get(timeout=GUARD_S) == b""
        reading.join(GUARD_S)
        assert near.recv(1) == b""
        with pytest.raises(BrokenPipeError):
            far.send(b"a")


@everywhere
def test_what_came_before_a_shutdown_is_still_read(world: World) -> None:
    with connected(world) as (near, far):
        near.sendall(b"ab")
        assert far.recv(1, socket.MSG_PEEK) == b"a"
        world.until(lambda: len(far.recv(2, socket.MSG_PEEK)) == 2)
        far.shutdown(socket.SHUT_RD)
        assert far.recv(2) == b"ab"
        assert far.recv(2) == b""


@everywhere
def test_sending_to_who_has_closed_breaks_the_connection(world: World) -> None:
    with connected(world) as (near, far):
        far.close()
        assert near.recv(1) == b""

        def send() -> None:
            for _ in range(1000):
                near.sendall(b"a")
                world.clocks.sleep(0.002)

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send()
        with pytest.raises(BrokenPipeError):
            near.sendall(b"a")


@everywhere
def test_closing_with_unread_bytes_resets_the_connection(world: World) -> None:
    with connected(world) as (near, far):
        near.sendall(b"abc")
        assert far.recv(1) == b"a"
        world.until(lambda: len(far.recv(9, socket.MSG_PEEK)) == 2)
        far.close()
        with pytest.raises(ConnectionResetError):
            near.recv(1)
        # It is told once.
        assert near.recv(1) == b""
        with pytest.raises(BrokenPipeError):
            near.sendall(b"x")
        assert number_of(lambda: near.shutdown(socket.SHUT_RDWR)) == errno.ENOTCONN


@everywhere
def test_what_came_before_a_reset_is_still_read(world: World) -> None:
    with connected(world) as (near, far):
        far.sendall(b"xy")
        assert near.recv(1) == b"x"
        near.sendall(b"z")
        assert far.recv(1, socket.MSG_PEEK) == b"z"
        world.until(lambda: near.recv(1, socket.MSG_PEEK) == b"y")
        far.close()
        # Until it is known, there is nothing to be seen of it.
        world.clocks.sleep(0.05)
        assert near.recv(1) == b"y"
        with pytest.raises(ConnectionResetError):
            near.recv(1)


@everywhere
def test_a_copy_keeps_the_connection(world: World) -> None:
    with connected(world) as (near, far):
        copy = near.dup()
        near.close()
        copy.sendall(b"a")
        assert far.recv(1) == b"a"
        far.sendall(b"b")
        assert copy.recv(1) == b"b"
        copy.shutdown(socket.SHUT_WR)
        assert far.recv(1) == b""
        copy.close()
        assert number_of(lambda: near.recv(1)) == errno.EBADF


@everywhere
def test_copies_share_a_shutdown(world: World) -> None:
    with connected(world) as (near, far):
        copy = near.dup()
        copy.shutdown(socket.SHUT_RDWR)
        assert near.recv(1) == b""
        with pytest.raises(BrokenPipeError):
            near.sendall(b"a")
        copy.close()
        assert far.recv(1) == b""


@everywhere
def test_nobody_listens(world: World) -> None:
    with world.sockets.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        assert number_of(lambda: world.sockets.create_server(address)) == errno.EADDRINUSE
    with pytest.raises(ConnectionRefusedError):
        world.sockets.create_connection(address, timeout=GUARD_S)
    with world.sockets.create_server(address):
        world.sockets.create_connection(address, timeout=GUARD_S).close()


@everywhere
def test_the_end_of_listening_wakes_who_accepts(world: World) -> None:
    listening = world.sockets.create_server(("127.0.0.1", 0))
    errors: Any = world.queues.SimpleQueue()

    def accept() -> None:
        try:
            listening.accept()
        except OSError as error:
            errors.put(error.errno)

    accepting = world.start(accept)
    world.clocks.sleep(0.01)
    listening.shutdown(socket.SHUT_RDWR)
    assert errors.get(timeout=GUARD_S) == errno.EINVAL
    accepting.join(GUARD_S)
    listening.close()
    assert number_of(listening.accept) == errno.EBADF


@everywhere
def test_connections_that_nobody_accepted_end_with_who_listened(world: World) -> None:
    listening = world.sockets.create_server(("127.0.0.1", 0))
    with world.sockets.create_connection(listening.getsockname(), timeout=GUARD_S) as near:
        listening.close()
        with pytest.raises(ConnectionResetError):
            near.recv(1)


@everywhere
def test_connections_are_accepted_in_order_and_later(world: World) -> None:
    with world.sockets.create_server(("127.0.0.1", 0), backlog=8) as listening:
        near = [world.sockets.create_connection(listening.getsockname(), timeout=GUARD_S) for _ in range(3)]
        for number, each in enumerate(near):
            each.sendall(b"%d" % number)
        far = [listening.accept()[0] for _ in near]
        assert [read(each, 1) for each in far] == [b"0", b"1", b"2"]
        for each in (*near, *far):
            each.close()


@everywhere
def test_sockets_that_are_not_connected(world: World) -> None:
    with world.sockets.Socket() as lonely:
        assert number_of(lambda: lonely.recv(1)) == errno.ENOTCONN
        assert number_of(lambda: lonely.shutdown(socket.SHUT_RDWR)) == errno.ENOTCONN
        lonely.bind(("127.0.0.1", 0))
        port = lonely.getsockname()[1]
        assert port > 0
    lonely.close()
    with world.sockets.create_server(("127.0.0.1", port)):
        pass
    with world.sockets.Socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("127.0.0.1", 9))
        assert probe.getsockname()[0] == "127.0.0.1"


@everywhere
def test_names_of_hosts(world: World) -> None:
    found = world.sockets.getaddrinfo("localhost", 80, socket.AF_INET, type=socket.SOCK_STREAM)
    assert (found[0][0], found[0][1], found[0][4]) == (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 80))
    assert world.sockets.getaddrinfo("10.1.2.3", None)[0][4] == ("10.1.2.3", 0)
    with pytest.raises(socket.gaierror):
        world.sockets.getaddrinfo("nobody.invalid", 80)
    with pytest.raises(socket.gaierror):
        world.sockets.create_connection(("nobody.invalid", 80), timeout=GUARD_S)
