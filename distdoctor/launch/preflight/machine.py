"""What this host offers the ranks: cores, threads, shared memory, the rendezvous endpoint and who holds its port."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import socket
from collections.abc import Iterable
from typing import Any

import psutil

from distdoctor.recording.cores import cores
from distdoctor.recording.preflight import CheckedMachine

SHARED_MEMORY = "/dev/shm"  # noqa: S108
CONNECT_SECONDS = 3.0


def look(ranks: int, workers: int, endpoint: tuple[str, int] | None, *, hosts_it: bool) -> CheckedMachine:
    """Ask this host. `endpoint`: of the rendezvous; `hosts_it`: whether it is to listen here."""
    shm_bytes, shm_free = shared_memory()
    unresolved, unreachable, holder = _endpoint(*endpoint, hosts_it=hosts_it) if endpoint else ("", "", "")
    return CheckedMachine(
        host=platform.node(),
        ranks=ranks,
        cores=cores(),
        threads=_threads(ranks),
        workers=workers,
        shm_bytes=shm_bytes,
        shm_free=shm_free,
        address="{}:{}".format(*endpoint) if endpoint else "",
        unresolved=unresolved,
        unreachable=unreachable,
        holder=holder,
    )


def shared_memory() -> tuple[int, int] | tuple[None, None]:
    """(bytes in all, bytes free) of what DataLoader workers and nccl share; None where the system has none."""
    if not os.path.isdir(SHARED_MEMORY):
        return None, None
    usage = shutil.disk_usage(SHARED_MEMORY)
    return usage.total, usage.free


def _threads(ranks: int) -> int:
    """OMP_NUM_THREADS as the ranks will have it: torchrun sets 1 where it is not set and there are several."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() else int(ranks > 1)


def _endpoint(host: str, port: int, *, hosts_it: bool) -> tuple[str, str, str]:
    """(why the name leads to no address, why nothing answers or can listen there, who listens there already)."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as trouble:
        return f"{host}: {trouble.strerror or trouble}", "", ""
    if not hosts_it:
        return "", _cannot_connect(found), ""
    troubles = [refusal for address in found if (refusal := _cannot_listen(*address))]
    taken = any(refusal.errno == errno.EADDRINUSE for refusal in troubles)
    holder = _holder(port) if taken else ""
    if holder or (not taken and len(troubles) < len(found)):
        return "", "", holder  # one address will do, as for the store, which listens on all that the host has
    where = f"{found[0][4][0]}:{port}"
    return "", f"cannot listen on {where}: {troubles[0].strerror}" if troubles else "", ""


def _cannot_listen(family: int, kind: int, protocol: int, _: str, address: Any) -> OSError | None:
    try:
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as trouble:
        return trouble
    return None


def _cannot_connect(addresses: Iterable[tuple[Any, ...]]) -> str:
    trouble = ""
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as client:
                client.settimeout(CONNECT_SECONDS)
                client.connect(address)
                return ""
        except TimeoutError:
            trouble = f"{address[0]}:{address[1]} did not answer within {CONNECT_SECONDS:g} s"
        except OSError as error:
            trouble = f"{address[0]}:{address[1]}: {error.strerror or error}"
    return trouble


def _holder(port: int) -> str:
    """The process that listens on a port of this host, "" when there is none."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            with contextlib.suppress(psutil.Error, TypeError):
                process = psutil.Process(connection.pid)
                return f"pid {process.pid} ({process.name()}) of {process.username()}"
            return "a process of another user"
    return ""
