"""TCP connections of ranks that are dead: the kernel sends the same bytes again and again, and nobody acknowledges them.

Read from /proc/PID/net/tcp and tcp6 (man 5 proc; Documentation/networking/proc_net_tcp.rst), without ptrace. What goes over
InfiniBand or NVLink is not there.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from distdoctor.recording.stacks import Link

ESTABLISHED, RETRANSMITTING = "01", "01"  # fields `st` and `tr`
# In a row, without an acknowledgement between them. The pause doubles each time, from 0.2 s (RFC 6298; Linux' TCP_RTO_MIN): the
# third goes out when nothing has come for more than a second.
FEWEST_RESENT = 3


@dataclass(frozen=True)
class _TcpConnection:
    local: str
    remote: str
    unacknowledged: int
    resent: int
    inode: str


def dead_links(ranks: Mapping[int, int]) -> dict[int, tuple[Link, ...]]:
    """By pid, the connections of these processes that are dead. `ranks`: pid -> rank; a pid without dead links is left out."""
    found: dict[int, list[Link]] = {}
    for pids in _by_network(ranks).values():
        connections = list(_connections(pids[0]))
        dead = [one for one in connections if one.resent >= FEWEST_RESENT and one.unacknowledged]
        if not dead:
            continue
        owners = {inode: pid for pid in pids for inode in _inodes(pid)}
        ends = {(one.local, one.remote): owners.get(one.inode) for one in connections}
        for one in dead:
            pid, peer = owners.get(one.inode), ends.get((one.remote, one.local))
            if pid is not None:
                link = Link(ranks.get(peer or 0, -1), one.remote, one.unacknowledged, one.resent)
                found.setdefault(pid, []).append(link)
    return {pid: tuple(links) for pid, links in found.items()}


def _by_network(pids: Iterable[int]) -> dict[str, list[int]]:
    """The processes by network namespace: in one, all see the same table."""
    found: dict[str, list[int]] = {}
    for pid in pids:
        try:
            found.setdefault(os.readlink(f"/proc/{pid}/ns/net"), []).append(pid)
        except OSError:
            continue  # it has gone, or is not ours to look at
    return found


def _connections(pid: int) -> Iterator[_TcpConnection]:
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="ascii") as table:
                lines = [line.split() for line in table][1:]
        except OSError:
            continue
        for words in lines:
            if len(words) > 9 and words[3] == ESTABLISHED:
                again = int(words[6], 16) if words[5].startswith(RETRANSMITTING) else 0
                waiting = int(words[4].partition(":")[0], 16)
                yield _TcpConnection(_address(words[1]), _address(words[2]), waiting, again, words[9])


def _address(words: str) -> str:
    """`10.0.0.2:4711` of `0200000A:1267`; IPv4 inside IPv6 is written as IPv4."""
    host, _, port = words.partition(":")
    raw = b"".join(struct.pack("=I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    name = socket.inet_ntop(family, raw).removeprefix("::ffff:")
    return f"[{name}]:{int(port, 16)}" if ":" in name else f"{name}:{int(port, 16)}"


def _inodes(pid: int) -> Iterator[str]:
    """The sockets that a process holds."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[len("socket:[") : -1]
