"""A machine is asked before a job starts on it; each test really breaks what it asks for."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a CUDA device")
def test_nccl_without_a_device_is_a_finding_and_no_rank_is_started(tmp_path: Path) -> None:
    done = run("--backend", "nccl", "--output-format", "json", cwd=tmp_path)

    [finding] = json.loads(done.stdout)["findings"]
    assert (done.returncode, finding["code"], finding["confidence"]) == (1, "DD602", "certain"), done.stderr
    assert finding["title"].startswith("backend nccl needs a CUDA device, and none is visible on ")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_more_ranks_than_devices_are_a_finding_and_no_rank_is_started(tmp_path: Path) -> None:
    many = torch.cuda.device_count() + 1
    done = run("--nproc", str(many), "--output-format", "json", cwd=tmp_path)

    [finding] = json.loads(done.stdout)["findings"]
    assert (done.returncode, finding["code"], finding["confidence"]) == (1, "DD601", "certain"), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small /dev/shm needs root")
def test_a_containers_shared_memory_is_too_small_for_workers(tmp_path: Path) -> None:
    inside = 'mount -t tmpfs -o size=64m tmpfs /dev/shm; exec "$@"'
    command = ["unshare", "--mount", "bash", "-c", inside, "_", *COMMAND, "--workers", "4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "DD606" in done.stdout
    assert "64 MiB free" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may put another torch in the place of this one")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to make the library that shifts a clock")
def test_a_host_with_other_code_another_torch_and_another_clock_is_told_on_both(tmp_path: Path) -> None:
    port = free_port()
    clock = tmp_path / "clock.so"
    source = Path(__file__).with_name("clock_set_back.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", clock, source, "-ldl"], check=True, capture_output=True)
    processes = []
    for number, (before, env) in enumerate((([], {}), (other_torch(tmp_path), {"LD_PRELOAD": str(clock)}))):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "train.py").write_text(f"LAYERS = {number}\n")
        (folder / "set-back").touch()
        options = ["--nnodes", "2", "--node-rank", str(number), "--endpoint", f"127.0.0.1:{port}", "--timeout", "60"]
        processes.append(
            subprocess.Popen(
                [*before, *COMMAND, *options],
                cwd=folder,
                env={**os.environ, **env},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    done = [process.communicate(timeout=90) for process in processes]

    assert all(process.returncode == 1 for process in processes), done
    for out, _ in done:
        assert "have code here" in out
        assert "ranks 2-3 have torch 1.0-other, the others 2." in out
        assert "DD611" in out
        assert "(ranks 2-3) is 3,600." in out or "(ranks 2-3) is 3,599." in out


def other_torch(folder: Path) -> list[str]:
    """What a command starts with that is to find another version of torch than the others do."""
    import torch

    installed = Path(torch.__file__).with_name("version.py")
    text = re.sub(r"^__version__ *=.*$", "__version__ = '1.0-other'", installed.read_text(), flags=re.MULTILINE)
    other = folder / "version.py"
    other.write_text(text)
    return ["unshare", "--mount", "bash", "-c", f'mount --bind {other} {installed}; exec "$@"', "_"]


WITHOUT_IPV6 = """
ip link set lo up
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
printf '127.0.0.1 localhost\n::1 localhost trainer-0\n' > hosts
mount --bind hosts /etc/hosts
exec "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take IPv6 away")
@pytest.mark.parametrize(("host", "code"), [("localhost", 0), ("trainer-0", 1), ("[::1]", 1)])
def test_where_ipv6_is_off_only_a_name_that_leads_nowhere_else_is_told(tmp_path: Path, host: str, code: int) -> None:
    inside = ["unshare", "--net", "--mount", "bash", "-c", WITHOUT_IPV6, "_"]
    command = [*inside, *COMMAND, "--endpoint", f"{host}:29500"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)

    assert done.returncode == code, done.stdout + done.stderr
    if code:
        assert "DD604" in done.stdout
        assert "cannot listen on ::1:29500: Cannot assign requested address" in done.stdout
    else:
        assert done.stdout.startswith("ready: 2 of 2 ranks met")


# What NCCL 2.31 does where NCCL_RUN_DIAGNOSTICS=1 and a communicator is made; here, as soon as a rank opens a socket.
PRINTS_DIAGNOSTICS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <unistd.h>
int socket(int domain, int kind, int protocol) {
  int (*real)(int, int, int) = dlsym(RTLD_NEXT, "socket");
  static int told;
  struct stat out;
  if (!told && !fstat(1, &out) && S_ISREG(out.st_mode)) {
    told = 1;
    printf("node0:%d NCCL DIAG === NCCL Diagnostics ===\\n", getpid());
    printf("node0:%d NCCL DIAG [INFO] p2p: read mismatch srcRank=0 srcCudaDev=0 dstRank=1 dstCudaDev=1 path=NVL\\n", getpid());
    fflush(stdout);
  }
  return real(domain, kind, protocol);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to print in the place of NCCL")
def test_what_nccls_diagnostics_print_is_read_and_never_gets_into_the_report(tmp_path: Path) -> None:
    (tmp_path / "prints.c").write_text(PRINTS_DIAGNOSTICS)
    build = ["cc", "-shared", "-fPIC", "-O1", "-o", "prints.so", "prints.c", "-ldl"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)

    done = run("--output-format", "json", cwd=tmp_path, env={"LD_PRELOAD": str(tmp_path / "prints.so")})

    [finding] = json.loads(done.stdout)["findings"]
    assert (done.returncode, finding["code"], finding["ranks"]) == (1, "DD610", [0, 1])
    assert "NCCL DIAG === NCCL Diagnostics ===" in done.stderr


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
