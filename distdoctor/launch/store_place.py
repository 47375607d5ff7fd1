"""Where the job's rendezvous store lives: in this process, on this host, or on another one, and whether anybody listens there."""

from __future__ import annotations

import contextlib
import enum
import socket
import time
from typing import Any

import psutil

KNOCK_SECONDS = 1.0  # for a living host to take or to refuse a connection; within a cluster it takes milliseconds
AGAIN_SECONDS = 0.1  # a process that is being killed loses its connections a moment before its port


class Knock(enum.Enum):
    """What comes of it when somebody knocks at the store's port."""

    ANSWERED = "answered"
    REFUSED = "refused"  # the host is there, and nobody listens: the process with the store has ended
    SILENT = "silent"  # the host, or the way to it, is gone


def knock(store: Any) -> Knock:
    """Try for a moment whether anybody listens at the store's port."""
    store, late = _innermost(store), time.monotonic() + KNOCK_SECONDS
    while True:
        try:
            socket.create_connection((store.host, store.port), max(AGAIN_SECONDS, late - time.monotonic())).close()
        except ConnectionRefusedError:
            return Knock.REFUSED
        except (OSError, AttributeError):
            return Knock.SILENT
        if time.monotonic() >= late:
            return Knock.ANSWERED
        time.sleep(AGAIN_SECONDS)


def is_ours(store: Any) -> bool:
    """Whether this process listens on the store's port."""
    with contextlib.suppress(psutil.Error, OSError, AttributeError):
        port = _innermost(store).port
        listening = (one for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN)
        return any(one.laddr.port == port for one in listening)
    return False


def is_here(store: Any) -> bool:
    """Whether the store's address is one of this host."""
    store = _innermost(store)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(store.host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (OSError, AttributeError):
        return False
    return True


def _innermost(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store
