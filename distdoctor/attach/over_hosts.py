"""Several hosts look at one job at the same time, each at its own ranks; what they saw comes back as documents of hang-dump."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from distdoctor.attach.ways import WayToHost
from distdoctor.errors import DoctorError
from distdoctor.recording.bundle import bundles_of
from distdoctor.recording.recording import Recording

AT_ONCE = 128  # hosts; each takes a process and a thread here
LARGEST_ANSWER = 256 << 20  # bytes; a host with 16 ranks and their stacks sends 50 KB
NO_JOB, NOT_THERE = 4, (126, 127)  # exit codes of hang-dump; of a shell that finds no such program
_PIECE = 1 << 16


@dataclass(frozen=True)
class HostAnswer:
    """What one host said: a recording of each job that runs there, or why there is none. `is_idle`: it looked, and no job runs
    there."""

    host: str
    recordings: tuple[Recording, ...] = ()
    trouble: str = ""
    is_idle: bool = False


def ask_all(
    ways: Sequence[WayToHost],
    words: Sequence[str],
    within: float,
    heard: Callable[[HostAnswer], None] = lambda answer: None,
) -> list[HostAnswer]:
    """The answer of each host to the command, in the order of `ways`. `within`: seconds that each may take.

    `heard` is called as the answers come, in threads of their own.
    """

    def ask_and_tell(way: WayToHost) -> HostAnswer:
        answer = HostAnswer(way.host, trouble=way.trouble) if way.trouble else _ask(way, words, within)
        heard(answer)
        return answer

    with ThreadPoolExecutor(min(AT_ONCE, len(ways)), thread_name_prefix="distdoctor-host") as pool:
        return list(pool.map(ask_and_tell, ways))


def _ask(way: WayToHost, words: Sequence[str], within: float) -> HostAnswer:
    try:
        process = subprocess.Popen(
            way.command(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # ssh has children of its own, and the terminal's Ctrl-C is for us
        )
    except OSError as trouble:
        return HostAnswer(way.host, trouble=f"cannot be asked: {trouble.strerror or trouble}")
    try:
        found = _heard_of(process, time.monotonic() + within)
    finally:
        _end(process)
    if isinstance(found, str):
        return HostAnswer(way.host, trouble=found.format(within=within))
    return _answer(way.host, *found, process.returncode)


def _heard_of(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes] | str:
    """What the process wrote to its two streams until both ended, else why that was not waited for."""
    found: dict[int, list[bytes]] = {}
    with selectors.DefaultSelector() as open_streams:
        for number, stream in enumerate((process.stdout, process.stderr)):
            assert stream is not None
            found[number] = []
            open_streams.register(stream, selectors.EVENT_READ, number)
        size = 0
        while open_streams.get_map():
            ready = open_streams.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return "did not answer within {within:g} s"
            for key, _ in ready:
                piece = os.read(key.fd, _PIECE)
                found[key.data].append(piece)
                size += len(piece)
                if not piece:
                    open_streams.unregister(key.fileobj)
            if size > LARGEST_ANSWER:
                return f"sent more than {LARGEST_ANSWER >> 20} MiB"
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, deadline - time.monotonic()))
    return b"".join(found[0]), b"".join(found[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of it stays behind here."""
    if process.poll() is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _answer(host: str, out: bytes, err: bytes, code: int) -> HostAnswer:
    try:
        recordings = bundles_of(out, f"the answer of {host}")
    except DoctorError as trouble:
        return HostAnswer(host, trouble=str(trouble))
    if recordings:
        return HostAnswer(host, tuple(recordings))
    if code in NOT_THERE:
        way_out = "--remote-command says how to call it"
        return HostAnswer(host, trouble=f"knows no such program ({_last_line(err)}); {way_out}")
    if code == NO_JOB and b"no distributed training job runs" in err:
        return HostAnswer(host, is_idle=True)
    return HostAnswer(host, trouble=f"answered with exit code {code}: {_last_line(err)}")


def _last_line(text: bytes) -> str:
    """What distdoctor said over there, else the last words of whatever was to lead there; printable, and short."""
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    ours = [line.removeprefix("distdoctor: ") for line in lines if line.startswith("distdoctor: ")]
    words = (ours or lines or ["no word"])[-1][:200]
    return "".join(letter if letter.isprintable() else " " for letter in words)
