"""`distdoctor WORDS` in a process of its own, forked from one that has imported torch: that takes a launcher 2 s of CPU.

Of distdoctor nothing is imported before the fork. The ranks that a launcher starts are new interpreters, as always.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FORKS = hasattr(os, "pidfd_open")  # Linux; elsewhere each command is a new interpreter


def command(words: list[str], cwd: Path, env: dict[str, str]) -> Forked | subprocess.Popen[str]:
    """`distdoctor WORDS`, started in a session of its own: what it writes can be read, and it reads nothing."""
    if FORKS:
        return Forked(words, cwd, env)
    return subprocess.Popen(
        [sys.executable, "-m", "distdoctor", *words], cwd=cwd, env=env, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run(words: list[str], cwd: Path, env: dict[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """`distdoctor WORDS` to its end; it is killed when that does not come in time."""
    started = command(words, cwd, env)
    try:
        out, err = started.communicate(timeout=timeout)
    finally:
        started.kill()
    return subprocess.CompletedProcess(words, started.returncode, out, err)


class Forked:
    """As a `subprocess.Popen` of this command would be."""

    def __init__(self, words: list[str], cwd: Path, env: dict[str, str]) -> None:
        self.returncode: int | None = None
        (out, out_end), (err, err_end), (self._status, status_end) = os.pipe(), os.pipe(), os.pipe()
        ends = [out_end, err_end, status_end]
        request = json.dumps({"words": words, "cwd": str(cwd), "env": env}).encode()
        socket.send_fds(_server()[0], [request], ends)
        for end in ends:
            os.close(end)
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        self.pid = int(os.read(self._status, 64))

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.returncode if self.returncode is not None or not self._ended(0) else self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; as that of `subprocess`, negative for a signal."""
        if self.returncode is None:
            if not self._ended(timeout):
                raise subprocess.TimeoutExpired("distdoctor", timeout or 0)
            self.returncode = int(os.read(self._status, 64))
            os.close(self._status)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it has still to say, and its end."""
        deadline = time.monotonic() + timeout if timeout is not None else None
        said: dict[Any, bytes] = {self.stdout: b"", self.stderr: b""}
        with selectors.DefaultSelector() as selector:
            for stream in said:
                if not stream.closed:
                    selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise subprocess.TimeoutExpired("distdoctor", timeout or 0)
                for key, _ in selector.select(left):
                    if more := os.read(key.fd, 1 << 16):
                        said[key.fileobj] += more
                    else:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        out, err = (one.decode(errors="replace").replace("\r\n", "\n") for one in said.values())
        return out, err

    def send_signal(self, number: int) -> None:
        """To the process alone."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> bool:
        return bool(select.select([self._status], [], [], timeout)[0])


@functools.cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """It goes when this end of the socket goes."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        server = subprocess.Popen(
            [sys.executable, __file__, str(its.fileno())],
            pass_fds=[its.fileno()],
            env={name: value for name, value in os.environ.items() if not name.startswith("DISTDOCTOR")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # as those that it forks will have: what Python finds out of its streams, it does at once
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    return ours, server


def _serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request. It returns in the forked processes alone, with what is asked of them."""
    running: dict[int, tuple[int, int]] = {}  # of a process: a descriptor that says when it ends -> id, whom to tell
    while True:
        for ready in select.select([control.fileno(), *running], [], [])[0]:
            if ready in running:
                pid, status = running.pop(ready)
                os.write(status, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(status)
                os.close(ready)
                continue
            request, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 3)
            if not request:
                os._exit(0)
            pid = os.fork()
            if not pid:
                control.close()
                for one, (_, status) in running.items():
                    os.close(one)
                    os.close(status)
                return json.loads(request), descriptors
            out, err, status = descriptors
            os.close(out)
            os.close(err)
            os.write(status, b"%d" % pid)
            running[os.pidfd_open(pid)] = (pid, status)


def _become(words: list[str], cwd: str, env: dict[str, str], out: int, err: int) -> None:
    """What `python -m distdoctor WORDS` is with this environment, in this folder."""
    os.setsid()
    os.chdir(cwd)
    for end, standard in ((out, 1), (err, 2)):
        os.dup2(end, standard)
        os.close(end)  # it came without close-on-exec
    before, after = (_folders(one.get("PYTHONPATH")) for one in (os.environ, env))
    sys.path[:] = [cwd, *after, *(path for path in sys.path[1:] if path not in before)]
    os.environ.clear()
    os.environ.update(env)
    sys.argv[1:] = words
    runpy.run_module("distdoctor", run_name="__main__", alter_sys=True)


def _folders(variable: str | None) -> list[str]:
    return [os.path.abspath(path) for path in (variable or "").split(os.pathsep) if path]


def _main() -> None:
    import torch.distributed.run  # noqa: F401

    for name in [name for name in sys.modules if name.partition(".")[0] == "distdoctor"]:  # by `import torch`
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    request, (out, err, status) = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.close(status)
    _become(**request, out=out, err=err)


if __name__ == "__main__":
    _main()
