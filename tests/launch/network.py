"""Hosts on one machine: network namespaces on a bridge, each command with its own host name, /dev/shm and PID namespace."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launching import Command, Finished

# Its own host name and processes. The shell is the first process of the host: what the command leaves behind goes on until the
# test is over.
_ON_A_HOST = 'hostname {name}; mount -t tmpfs tmpfs /dev/shm; "$@"; code=$?; [ -e {stays} ] && sleep 600; exit $code'

_ONE_JUDGES = """
from distdoctor.launch.exchange import Exchange
Exchange.all_judge_up_to = 1
from distdoctor.__main__ import main
main()
"""

_LAUNCHERS = ([b"-m", b"distdoctor"], [b"-m", b"torch.distributed.run"])

# What ssh does, without its network: the words after the host, put together, are for a shell on that host.
_SSH = """#!{python}
import os, subprocess, sys, time
host, words = sys.argv[sys.argv.index("--") + 1], sys.argv[sys.argv.index("--") + 2:]
if host == "asleep":
    time.sleep(600)
if host not in {hosts}:
    sys.exit("ssh: connect to host " + host + " port 22: Connection refused")
listed = ["ip", "netns", "pids", "{prefix}h" + host[-1]]
pids = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
inside = [pid for pid in pids if os.readlink("/proc/" + pid + "/ns/pid") != os.readlink("/proc/self/ns/pid")]
namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
os.execvp("nsenter", ["nsenter", "--target", inside[0], *namespaces, "sh", "-c", " ".join(words)])
"""


def why_not() -> str:
    """Why there can be no such hosts here, "" where there can."""
    if os.geteuid() != 0:
        return "hosts are made of network namespaces, which only root may make"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "hosts are made with `ip netns` and `unshare`, which are not installed (iproute2, util-linux)"
    name = f"ddtry{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return f"no network namespace can be made: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass(frozen=True)
class Hosts:
    """Hosts 1, 2 and so on, `ddh1`, `ddh2`. `folder` is where their commands run; it is shared."""

    folder: Path
    begin: Callable[..., Command]
    prefix: str
    count: int = 2
    one_judges: bool = False  # as where there are many
    store_on: int = 1  # the host with the store of c10d by IPv4

    @property
    def addresses(self) -> dict[int, str]:
        return {host: f"10.77.0.{host}" for host in range(1, self.count + 1)}

    def start(self, host: int, *arguments: object, env: dict[str, str] | None = None) -> Command:
        """`distdoctor ARGUMENTS` on a host."""
        program = ["-c", _ONE_JUDGES] if self.one_judges else ["-m", "distdoctor"]
        return self.begin(words=[*self.on(host), sys.executable, *program, *map(str, arguments)], env=env)

    def plain_torchrun(self, nproc: int, script: str) -> list[Command]:
        """One job over all hosts that distdoctor did not start."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.count)]
        torchrun += ["--nproc-per-node", str(nproc)]
        return [self.begin(words=[*self.on(host), *torchrun, *self.meeting(host), script]) for host in self.addresses]

    def meeting(self, host: int, kind: str = "c10d") -> list[str]:
        """How a launcher finds the others: `c10d`, `static`, or one of both by IPv6: `c10d6`, `static6`."""
        first = "[fd77::1]" if kind.endswith("6") else self.addresses[self.store_on]
        if kind.startswith("static"):
            return ["--node-rank", str(host - 1), "--master-addr", first, "--master-port", "29400"]
        # torch finds out by IPv4 alone whose address it is: by IPv6 nobody would open the store
        conf = ["--rdzv-conf", f"is_host={int(host == 1)}"] if kind.endswith("6") else []
        return ["--rdzv-backend", "c10d", "--rdzv-id", self.prefix, "--rdzv-endpoint", f"{first}:29400", *conf]

    def ssh(self) -> Path:
        """A folder with an `ssh` that leads to the hosts. To `asleep` it connects and nobody answers; any other refuses."""
        program = self.folder / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(
            _SSH.format(python=sys.executable, prefix=self.prefix, hosts=[f"ddh{n}" for n in self.addresses])
        )
        program.chmod(0o755)
        return program.parent

    def torchrun(
        self,
        nproc: int,
        *more: object,
        separate: bool = False,
        kind: str = "c10d",
        env: dict[str, str] | None = None,
    ) -> list[Command]:
        """One job over all hosts: `distdoctor run` on each, into one run folder or `separate` ones."""
        options = ["--nnodes", self.count, "--nproc-per-node", nproc]
        folders = {host: ["--run-dir", f"run{host}" if separate else "run"] for host in self.addresses}
        return [
            self.start(host, "run", *options, *self.meeting(host, kind), *folders[host], *more, "train.py", env=env)
            for host in self.addresses
        ]

    def keep_up(self, host: int) -> None:
        """The host stays up when its launcher has ended."""
        (self.folder / f"host{host}-stays").touch()

    def go_down(self, host: int) -> None:
        """Every process of the host ends at once, as where its power fails."""
        for pid in self._pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _pids(self, host: int) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", f"{self.prefix}h{host}"], capture_output=True, text=True).stdout
        return [int(pid) for pid in listed.split()]

    def signal(self, host: int, number: int) -> None:
        """Send a signal to the launcher on a host, as a scheduler does."""
        for pid in self._pids(host):
            with contextlib.suppress(OSError):  # it may just have ended
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if words[1:3] in _LAUNCHERS:
                    os.kill(pid, number)

    def on(self, host: int) -> list[str]:
        """The words before a command that make it one of the host's."""
        script = _ON_A_HOST.format(name=f"ddh{host}", stays=self.folder / f"host{host}-stays")
        own = ["unshare", "--uts", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child"]
        return ["ip", "netns", "exec", f"{self.prefix}h{host}", *own, "bash", "-c", script, "_"]

    def cut(self, host: int) -> None:
        """Take the host off the network."""
        _ip("-n", f"{self.prefix}br", "link", "set", f"p{host}", "down")


@contextlib.contextmanager
def made_hosts(folder: Path, begin: Callable[..., Command], count: int) -> Iterator[Hosts]:
    """So many hosts, gone afterwards."""
    prefix = f"dd{os.getpid()}"
    hosts = Hosts(folder, begin, prefix, count)
    try:
        _make(prefix, hosts.addresses)
        yield hosts
    finally:
        for name in (f"{prefix}br", *(f"{prefix}h{host}" for host in hosts.addresses)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)


def _make(prefix: str, addresses: dict[int, str]) -> None:
    bridge = f"{prefix}br"
    _ip("netns", "add", bridge)
    _ip("-n", bridge, "link", "add", "br0", "type", "bridge")
    _ip("-n", bridge, "link", "set", "br0", "up")
    names = "127.0.0.1 localhost\n" + "".join(f"{address} ddh{host}\n" for host, address in addresses.items())
    for host, address in addresses.items():
        name = f"{prefix}h{host}"
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{host}", "netns", bridge)
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        if Path("/proc/net/if_inet6").exists():
            _ip("-n", name, "addr", "add", f"fd77::{host:x}/64", "dev", "eth0", "nodad")
        _ip("-n", bridge, "link", "set", f"p{host}", "master", "br0")
        _ip("-n", bridge, "link", "set", f"p{host}", "up")
        known = Path("/etc/netns") / name
        known.mkdir(parents=True)
        (known / "hosts").write_text(names)
        (known / "resolv.conf").write_text("")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def finished(commands: list[Command]) -> list[Finished]:
    """All of them at their end, which must come by itself."""
    return [command.finish() for command in commands]
