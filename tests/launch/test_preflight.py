"""A machine is asked before a job starts on it; each test really breaks what it asks for."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.job
COMMAND = [sys.executable, "-m", "distdoctor", "preflight", "--nproc", "2"]


def run(*options: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.run([*COMMAND, *options], cwd=cwd, env=environment, capture_output=True, text=True, timeout=90)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_machine_that_is_fit_is_ready(tmp_path: Path) -> None:
    done = run(cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ready: 2 of 2 ranks met with gloo")
    assert "all_reduce of 1,024 KiB" in done.stdout


def test_a_port_that_somebody_holds_is_named_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = run("--endpoint", f"127.0.0.1:{server.getsockname()[1]}", cwd=tmp_path)

    assert done.returncode == 1
    assert "DD605" in done.stdout.splitlines()[0]
    assert f"pid {os.getpid()}" in done.stdout


def test_a_name_that_nobody_knows_and_threads_for_a_larger_machine(tmp_path: Path) -> None:
    done = run("--endpoint", "nobody.invalid:29500", cwd=tmp_path, env={"OMP_NUM_THREADS": "4096"})

    assert done.returncode == 1
    assert "DD604" in done.stdout
    assert "nobody.invalid" in done.stdout
    assert "DD607" in done.stdout
    assert "8192 cores" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small /dev/shm needs root")
def test_a_containers_shared_memory_is_too_small_for_workers(tmp_path: Path) -> None:
    inside = 'mount -t tmpfs -o size=64m tmpfs /dev/shm; exec "$@"'
    command = ["unshare", "--mount", "bash", "-c", inside, "_", *COMMAND, "--workers", "4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "DD606" in done.stdout
    assert "64 MiB free" in done.stdout


def test_hosts_with_other_code_are_told_apart_on_both(tmp_path: Path) -> None:
    port = free_port()
    processes = []
    for number in (0, 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "train.py").write_text(f"LAYERS = {number}\n")
        options = ["--nnodes", "2", "--node-rank", str(number), "--endpoint", f"127.0.0.1:{port}", "--timeout", "60"]
        processes.append(
            subprocess.Popen(
                [*COMMAND, *options], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    done = [process.communicate(timeout=90) for process in processes]

    assert all("DD603" in out and "code here" in out for out, _ in done), done
    assert all(process.returncode == 1 for process in processes)


# What a broken network card does: of all that is read in pieces of 2 KiB and more, one bit comes out as another.
BROKEN_READS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/socket.h>
#include <unistd.h>
static int is_socket(int fd) { struct stat about; return !fstat(fd, &about) && S_ISSOCK(about.st_mode); }
static void spoil(void *at, ssize_t got) { if (got >= 2048) ((unsigned char *)at)[got / 2 / 4 * 4 + 2] ^= 0x10; }
ssize_t read(int fd, void *at, size_t size) {
  ssize_t (*real)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
  ssize_t got = real(fd, at, size);
  if (is_socket(fd)) spoil(at, got);
  return got;
}
ssize_t recv(int fd, void *at, size_t size, int flags) {
  ssize_t (*real)(int, void *, size_t, int) = dlsym(RTLD_NEXT, "recv");
  ssize_t got = real(fd, at, size, flags);
  spoil(at, got);
  return got;
}
ssize_t readv(int fd, const struct iovec *parts, int count) {
  ssize_t (*real)(int, const struct iovec *, int) = dlsym(RTLD_NEXT, "readv");
  ssize_t got = real(fd, parts, count);
  if (is_socket(fd) && count && parts[count - 1].iov_len >= 2048 && got >= 2048)
    spoil(parts[count - 1].iov_base, got < (ssize_t)parts[count - 1].iov_len ? got : (ssize_t)parts[count - 1].iov_len);
  return got;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to break the network with")
def test_sums_that_come_out_wrong_are_a_finding_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "broken.c").write_text(BROKEN_READS)
    build = ["cc", "-shared", "-fPIC", "-O1", "-o", "broken.so", "broken.c", "-ldl"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    environment = {"LD_PRELOAD": str(tmp_path / "broken.so")}

    done = run("--output-format", "json", cwd=tmp_path, env=environment)

    document = json.loads(done.stdout)
    [finding] = [one for one in document["findings"] if one["code"] == "DD609"]
    assert (done.returncode, finding["severity"], finding["confidence"]) == (1, "error", "certain")
    assert "16,384 KiB" in finding["title"]
