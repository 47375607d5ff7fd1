"""What the tests of the launcher share: a command line with everything that it starts, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from forked_command import Forked, command

from distdoctor.recording.trace.run_folder import job_to_json, read_job

LIMIT_SECONDS = 120


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str
    folder: Path | None

    @property
    def document(self) -> Any:
        """stdout as the one JSON document that it has to be."""
        return json.loads(self.out)

    @property
    def job(self) -> Any:
        assert self.folder is not None
        job = read_job(self.folder)
        assert job is not None
        return json.loads(job_to_json(job))

    @property
    def traces(self) -> list[str]:
        assert self.folder is not None
        return sorted(path.name for path in self.folder.glob("*.trace"))


class Command:
    """One command line that runs, with everything that it starts."""

    def __init__(self, process: subprocess.Popen[str] | Forked, cwd: Path) -> None:
        self.process, self.cwd = process, cwd
        self._children: set[psutil.Process] = set()

    @classmethod
    def of_distdoctor(cls, words: list[str], cwd: Path, env: dict[str, str]) -> Command:
        """`distdoctor WORDS`."""
        return cls(command(words, cwd, env), cwd)

    @classmethod
    def of_words(cls, words: list[str], cwd: Path, env: dict[str, str]) -> Command:
        """Any program."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )
        return cls(process, cwd)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Come back when the condition holds; fail when the job is over or too late."""
        deadline, remember_at = time.monotonic() + LIMIT_SECONDS, 0.0
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            now = time.monotonic()
            assert now < deadline, "the job did not get there in time"
            if now >= remember_at:  # that looks at every process of the machine
                self._remember()
                remember_at = time.monotonic() + 1
            time.sleep(0.05)

    def hear(self, word: str, *, within: float) -> str:
        """Everything that the command has said on stderr up to the line with a word; fail when that does not come."""
        stream, heard = self.process.stderr, ""
        assert stream is not None
        deadline = time.monotonic() + within
        while word not in heard.rpartition("\n")[0]:
            ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{word} was not said: {heard}"
            heard += os.read(stream.fileno(), 65536).decode()
        self._remember()
        return heard

    def finish(self) -> Finished:
        """The end of the command, which must come by itself."""
        out, err = self.process.communicate(timeout=LIMIT_SECONDS)
        latest = self.cwd / ".distdoctor" / "runs" / "latest"
        return Finished(self.process.returncode, out, err, latest.resolve() if latest.exists() else None)

    def end(self) -> None:
        """Kill what is left, by pid."""
        self._remember()
        for process in self._children:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        if self.process.poll() is None:
            self.process.kill()
        for pid in _of_session(self.process.pid):  # whose parents are gone: they would hold the pipes open for ever
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=LIMIT_SECONDS)

    def _remember(self) -> None:
        try:
            self._children |= set(psutil.Process(self.process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return


def _of_session(session: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if pid != os.getpid() and os.getsid(pid) == session:
                found.append(pid)
    return found


FINISH = "dist.all_reduce(t)\ndist.destroy_process_group()"
