"""What a launcher sends and receives over the network while its job trains: the signs of life and the exchange between hosts.

    python benchmarks/store_traffic.py [--hosts 3] [--seconds 20]
    python benchmarks/store_traffic.py --simulate 64 1024

As root: the hosts are network namespaces (tests/launch/network.py). Their ranks only sleep, so that what the interface of a host
counts is the launcher's own. The same is measured under torchrun alone, whose launchers keep a rendezvous alive too.

With `--simulate` the signs of life of so many launchers go to one real TCPStore from a few processes, in a network namespace of
their own whose loopback interface counts them, headers included; all of it passes through the host of the store. Then one
launcher falls silent, and it is told after how many seconds host 0 and the last of the others knew, where its silence holds the
ranks up and, with `--none-waits`, where it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "launch"))
from launching import Command
from network import Hosts, made_hosts, why_not

LOOK_SECONDS = 0.5  # between two looks of a host's watcher

SLEEPS = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
open(f"at-{dist.get_rank()}", "w").close()
time.sleep(600)
"""


def bytes_of(hosts: Hosts, host: int) -> int:
    """Everything that a host has sent and received."""
    listed = ["ip", "-n", f"{hosts.prefix}h{host}", "-s", "-j", "link", "show", "eth0"]
    shown = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    counted = json.loads(shown)[0]["stats64"]
    return int(counted["rx"]["bytes"]) + int(counted["tx"]["bytes"])


def measure(hosts: int, seconds: int, *, plain: bool) -> list[float]:
    """Bytes a second of each host."""
    with tempfile.TemporaryDirectory() as made:
        folder, running = Path(made), []
        (folder / "train.py").write_text(SLEEPS)

        def begin(words: list[str], env: dict[str, str] | None = None) -> Command:
            running.append(Command.of_words(words, folder, {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}))
            return running[-1]

        with made_hosts(folder, begin, hosts) as lab:
            try:
                commands = lab.plain_torchrun(1, "train.py") if plain else lab.torchrun(1, separate=True)
                for rank in range(hosts):
                    commands[0].wait_for(lambda at=folder / f"at-{rank}": at.exists())
                time.sleep(3)  # greetings are over
                before = [bytes_of(lab, host) for host in lab.addresses]
                time.sleep(seconds)
                after = [bytes_of(lab, host) for host in lab.addresses]
            finally:
                for command in running:
                    command.end()
    return [(late - early) / seconds for early, late in zip(before, after, strict=True)]


def simulate(hosts: int, seconds: float, *, rest: bool, processes: int) -> None:
    """Signs of life alone, of launchers that share a few processes and have a connection each. The store is in this process."""
    import torch.distributed as dist

    from distdoctor.launch.presence import beat_of

    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shares = [range(hosts)[at::processes] for at in range(processes)]
    parts = [_Part(server.port, hosts, share, rest=rest) for share in shares]
    time.sleep(max(3.0, 1.5 * beat_of(hosts)))  # greetings are over
    first, since = looped(), time.monotonic()
    time.sleep(max(seconds, beat_of(hosts)))
    a_second = (looped() - first) / (time.monotonic() - since)

    first, cpu = looped(), sum(part.cpu_seconds() for part in parts)
    gone = hosts - 1
    moments = [part.ask(f"lose {gone} {10 * beat_of(hosts) + 10}") for part in parts]
    found = {int(host): at - moments[gone % processes] for part in parts for host, at in part.answer().items()}
    cpu = sum(part.cpu_seconds() for part in parts) - cpu
    for part in parts:
        part.process.kill()
    aware = sorted(found.values())
    told = (
        f"{found[0]:.1f} s, by half of all after {aware[len(aware) // 2]:.1f} s, by all after {aware[-1]:.1f} s"
        if len(found) == hosts - 1
        else f"never by {hosts - 1 - len(found)} hosts"
    )
    kind = "that holds the ranks up" if rest else "for which no rank waits"
    print(f"{hosts:>6} hosts, a word each {beat_of(hosts):4.1f} s: {a_second / 1024:6.2f} KiB/s at the host of the store, "
          f"{a_second / 1024 / hosts:.3f} at another; a loss {kind} is noticed by host 0 after {told} "
          f"({(looped() - first) / 1024 / hosts:.1f} KiB and {1000 * cpu / hosts:.1f} ms of CPU a host, "
          f"{cpu / max(aware, default=1.0) / (os.cpu_count() or 1):.0%} of the processors)", flush=True)  # fmt: skip


class _Part:
    """A process with some of the launchers."""

    def __init__(self, port: int, hosts: int, share: range, *, rest: bool) -> None:
        words = [sys.executable, __file__, "--launchers", json.dumps([port, hosts, [*share], rest])]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, words: str) -> float:
        """When it was asked, monotonic seconds, which all processes share."""
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return time.monotonic()

    def answer(self) -> dict[str, float]:
        """Host -> when it knew of the loss."""
        found: dict[str, float] = json.loads(self._line())
        return found

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def launchers(port: int, hosts: int, share: list[int], rest: bool) -> None:
    """The life of such a process: it begins, is told who is lost, and says when each of its launchers knew."""
    import torch.distributed as dist

    from distdoctor.launch.presence import Presence
    from distdoctor.launch.rendezvous import Rendezvous
    from distdoctor.recording.trace.process_key import ProcessKey

    made = {}
    for host in share:
        rendezvous = Rendezvous()
        client = dist.TCPStore("127.0.0.1", port, is_master=False)
        rendezvous.store = dist.PrefixStore("torch.rendezvous.4711", client)
        rendezvous.hosts, rendezvous.host_number = hosts, host
        made[host] = Presence(rendezvous, ProcessKey(host=f"gpu{host:05}"), lambda: None)
        made[host].begin(0, range(8 * host, 8 * host + 8))
    print("begun", flush=True)
    _, gone, longest = sys.stdin.readline().split()
    if int(gone) in made:  # as where its process has ended: nothing more is said
        lost = made.pop(int(gone))
        lost._over.set()
        lost._rolls = None
        lost._wake.set()
    since, aware = time.monotonic(), dict[int, float]()
    looks = {host: since + number / len(made) * LOOK_SECONDS for number, host in enumerate(made)}
    while len(aware) < len(made) and time.monotonic() < since + float(longest):
        host = min(looks, key=looks.__getitem__)
        time.sleep(max(0.0, looks[host] - time.monotonic()))
        looks[host] = time.monotonic() + LOOK_SECONDS
        if rest:  # what its watcher says
            made[host].rests(time.monotonic() - since)
        if host not in aware and made[host].lost():
            aware[host] = time.monotonic()
    print(json.dumps(aware), flush=True)
    sys.stdin.read()


def looped() -> int:
    shown = subprocess.run(["ip", "-s", "-j", "link", "show", "lo"], capture_output=True, text=True, check=True).stdout
    return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--simulate", type=int, nargs="+", default=[])
    parser.add_argument("--none-waits", action="store_true", help="simulate a loss that no rank waits for")
    parser.add_argument("--processes", type=int, default=8, help="that share the simulated launchers")
    parser.add_argument("--inside", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--launchers", type=json.loads, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if asked.launchers:
        launchers(*asked.launchers)
        return
    if asked.inside:
        simulate(asked.inside, asked.seconds, rest=not asked.none_waits, processes=min(asked.processes, asked.inside))
        return
    if trouble := why_not():
        sys.exit(trouble)
    for hosts in asked.simulate:
        words = [sys.executable, __file__, "--inside", str(hosts), "--seconds", str(asked.seconds)]
        words += ["--processes", str(asked.processes), *["--none-waits"] * asked.none_waits]
        subprocess.run(["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "_", *words], check=True)
    if asked.simulate:
        return
    print("KiB a second of host " + "  ".join(f"{host:>6}" for host in range(1, asked.hosts + 1)))
    for name, plain in (("torchrun", True), ("distdoctor", False)):
        found = measure(asked.hosts, asked.seconds, plain=plain)
        print(f"{name:>20}  " + "  ".join(f"{one / 1024:6.2f}" for one in found), flush=True)


if __name__ == "__main__":
    main()
