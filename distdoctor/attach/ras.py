"""Ask NCCL's RAS about a job, where one of its ranks has opened the port for that: it knows the ranks of all hosts.

The protocol is text over TCP (NCCL 2.24+, docs "RAS"; JSON by `SET FORMAT`, 2.28.7+). Nobody is asked whose port is not held by a
rank of the job.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from ipaddress import ip_address

import psutil

from distdoctor.recording.ras import LARGEST_BYTES, report_of
from distdoctor.recording.ras_report import RasReport

HOST, PORT = "localhost", 28028  # NCCL's defaults; NCCL_RAS_ADDR changes them
CONNECT_SECONDS = 0.3
LIMIT_SECONDS = 6.0  # RAS itself gives up on silent processes after 5 s (NCCL 2.29)


def report_of_job(pids: Iterable[int]) -> RasReport | None:
    """What RAS says, None where no rank among these processes has its port open, or it does not answer. Never raises."""
    for pid in pids:
        address = _port_of(pid)
        if address is not None:
            return ask(*address)
    return None


def _port_of(pid: int) -> tuple[str, int] | None:
    """The address on which a process listens for clients of RAS."""
    try:
        process = psutil.Process(pid)
        named = process.environ().get("NCCL_RAS_ADDR", "")
        port = int(named.rpartition(":")[2]) if named.rpartition(":")[2].isdigit() else PORT
        listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    except (psutil.Error, OSError, ValueError):
        return None
    found = next((one.laddr for one in listening if one.laddr and one.laddr.port == port), None)
    if found is None:
        return None
    here = ip_address(found.ip)
    return (HOST if here.is_unspecified or here.is_loopback else found.ip), port


def ask(host: str, port: int) -> RasReport | None:
    """The answer as JSON, as text where the server does not know that; None when there is none."""
    for commands in ((b"SET FORMAT json\n", b"VERBOSE STATUS\n"), (b"VERBOSE STATUS\n",)):
        try:
            with socket.create_connection((host, port), CONNECT_SECONDS) as line:
                words = _answer(line, commands)
            return report_of(words)
        except (OSError, ValueError, RecursionError):
            continue
    return None


def _answer(line: socket.socket, commands: tuple[bytes, ...]) -> str:
    """What the server says to the last command. ValueError: it does not take one of those before it."""
    until = time.monotonic() + LIMIT_SECONDS
    for command in commands[:-1]:
        line.sendall(command)
        if not _line(line, until).upper().startswith(b"OK"):
            raise ValueError("not known")
    line.sendall(commands[-1])
    pieces, size = [], 0
    while size < LARGEST_BYTES:
        line.settimeout(max(0.01, until - time.monotonic()))
        piece = line.recv(1 << 16)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces).decode("utf-8", "replace")


def _line(line: socket.socket, until: float) -> bytes:
    found = b""
    while not found.endswith(b"\n") and len(found) < 200:
        line.settimeout(max(0.01, until - time.monotonic()))
        piece = line.recv(1)
        if not piece:
            break
        found += piece
    return found
