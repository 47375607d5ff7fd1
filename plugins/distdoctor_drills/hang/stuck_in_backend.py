"""The network between the ranks goes dead, but the connections stay open."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

STUCK_IN_BACKEND = Drill(
    slug="stuck-in-backend",
    code="DD122",
    summary="from step 3 on, rank 1 receives no packets from its peers",
    expect="DD122: all ranks are in the same collective, and it does not complete",
    plant="distdoctor_drills.hang.stuck_in_backend:plant",
    ranks=(1,),
    strategies=("ddp", "amp"),
)
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
# struct sock_filter of linux/filter.h: BPF_RET | BPF_K, of a packet 0 bytes are let through.
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)


def plant(training: Training) -> None:
    """A switch that drops packets, as the kernel of rank 1."""

    def cut(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            for descriptor in os.listdir("/proc/self/fd"):
                _drop_what_comes(int(descriptor))

    training.on("after_step", cut)


def _drop_what_comes(descriptor: int) -> None:
    """Attach a filter that lets nothing through to a TCP connection between two ranks; the store's stays."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
            if not is_tcp or connection.getpeername()[1] == int(os.environ.get("MASTER_PORT", "0")):
                return
            program = ctypes.create_string_buffer(_DROP, len(_DROP))
            filters = struct.pack("HP", 1, ctypes.addressof(program))  # struct sock_fprog
            connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filters)
    except OSError:
        return  # no socket, or not connected
