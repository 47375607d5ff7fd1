"""Ask the flight recorders of ranks that `distdoctor run` started: torch's C++ answers, whatever Python does meanwhile."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from distdoctor.recording.flight.dumps import dump_of
from distdoctor.recording.flight.entries import FlightDump
from distdoctor.recording.trace.run_folder import socket_paths

# 2,000 entries take 0.06 s (torch 2.15, measured); a stopped process never answers.
LIMIT_SECONDS = 2.0
LARGEST_BYTES = 64 << 20  # 2,000 entries are 1 MB
# Answered without the GIL. Handlers that need it (dump_traceback, torch_profile) wait with the rank, or end it. Each backend
# keeps a recorder of its own (torch 2.15, FlightRecorderHook.hpp); the last one is that of NCCL before it was named.
_QUESTIONS = (
    "fr_trace_json?backend=gloo",
    "fr_trace_json?backend=nccl",
    "fr_trace_json?backend=nccl2",
    "dump_nccl_trace_json",
)


def dumps_of(folder: Path) -> dict[int, list[FlightDump]]:
    """rank -> its dumps, one per backend, of the ranks that record into `folder` and answer. Never raises."""
    paths = socket_paths(folder)
    if not paths:
        return {}
    with ThreadPoolExecutor(max_workers=min(16, len(paths))) as pool:
        found = pool.map(lambda item: _ask(*item), paths.items())
        return {dumps[0].rank: dumps for dumps in found if dumps}


def _ask(rank: int, path: Path) -> list[FlightDump]:
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    dumps: list[FlightDump] = []
    try:
        for question in _QUESTIONS:
            if question == _QUESTIONS[-1] and any("nccl" in one.source for one in dumps):
                break
            answer = _answer(f"/proc/self/fd/{folder}/{path.name}", question)
            dump = dump_of(answer, rank, f"{path} {question}", time.time_ns())
            dumps += [dump] if dump.entries else []
    except (OSError, ValueError, http.client.HTTPException, RecursionError):
        pass  # it has ended, it is stopped, or what it says is no dump
    finally:
        os.close(folder)
    return dumps


class _UnixHttpConnection(http.client.HTTPConnection):
    """HTTP over a socket in the file system; its path goes through a descriptor, because it may hold 107 bytes only."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=LIMIT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(LIMIT_SECONDS)
        self.sock.connect(self._path)


def _answer(path: str, question: str) -> Mapping[str, Any]:
    """ValueError: not an answer of a flight recorder."""
    connection = _UnixHttpConnection(path)
    try:
        connection.request("POST", f"/handler/{question}", body=b"")
        response = connection.getresponse()
        said = response.read(LARGEST_BYTES + 1) if response.status == 200 else b""
    finally:
        connection.close()
    found = json.loads(said) if 0 < len(said) <= LARGEST_BYTES else None
    if not isinstance(found, dict):
        raise ValueError("no flight recorder answers there")
    return found
