"""Connections between ranks, as the kernel counts what is sent on them again."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from distdoctor.attach.links import dead_links

ATTACH_FILTER = 26  # SO_ATTACH_FILTER
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
LIMIT_SECONDS = 60.0


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket(request.param) as listener:
        try:
            listener.bind(("127.0.0.1" if request.param == socket.AF_INET else "::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as one, listener.accept()[0] as other:
            yield one, other


@pytest.mark.job
def test_a_connection_whose_packets_are_dropped_is_dead_and_its_ends_are_named(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    one, other = ends
    program = ctypes.create_string_buffer(DROP_ALL, len(DROP_ALL))
    other.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))
    one.sendall(b"x" * 1000)
    since = time.monotonic()
    while not (found := dead_links({os.getpid(): 3})) and time.monotonic() < since + LIMIT_SECONDS:
        time.sleep(0.2)

    (link,) = found[os.getpid()]

    assert (link.peer, link.unacknowledged) == (3, 1000)
    assert link.resent >= 3
    host, port = other.getsockname()[:2]
    assert link.address == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


@pytest.mark.job
def test_a_peer_that_does_not_read_is_slow_and_its_connection_is_not_dead(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    one, _ = ends
    one.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            one.send(b"x" * 65536)
    time.sleep(2)

    assert dead_links({os.getpid(): 0}) == {}


def test_a_process_that_has_gone_or_is_not_ours_to_look_at_has_no_dead_connections() -> None:
    assert dead_links({(1 << 22) - 1: 0, 1: 1}) == {}
