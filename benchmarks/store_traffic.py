"""What a launcher sends and receives over the network while its job trains: the signs of life and the exchange between hosts.

    python benchmarks/store_traffic.py [--hosts 3] [--seconds 20]
    python benchmarks/store_traffic.py --simulate 64 1024

As root: the hosts are network namespaces (tests/launch/network.py). Their ranks only sleep, so that what the interface of a host
counts is the launcher's own. The same is measured under torchrun alone, whose launchers keep a rendezvous alive too.

With `--simulate` the signs of life of so many launchers go to one real TCPStore from one process, in a network namespace of its
own whose loopback interface counts them, headers included; all of it passes through the host of the store. Then one launcher
falls silent, and it is told after how many seconds host 0 and the last of the others knew, where its silence holds the ranks up
and, with `--none-waits`, where it does not.
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

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "launch"))
from launching import Command
from network import Hosts, made_hosts, why_not

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
            running.append(Command(words, folder, {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}))
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


def simulate(hosts: int, seconds: float, *, rest: bool) -> None:
    """Signs of life alone, of launchers that share a process and have a connection each."""
    import torch.distributed as dist

    from distdoctor.launch.presence import Presence, beat_of
    from distdoctor.launch.rendezvous import Rendezvous
    from distdoctor.recording.trace.process_key import ProcessKey

    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launchers = []
    for host in range(hosts):
        rendezvous = Rendezvous()
        rendezvous.store = dist.PrefixStore("torch.rendezvous.4711", server)
        rendezvous.hosts, rendezvous.host_number = hosts, host
        launchers.append(Presence(rendezvous, ProcessKey(host=f"gpu{host:05}"), lambda: None))
        launchers[-1].begin(0, range(8 * host, 8 * host + 8))
    time.sleep(max(3.0, 1.5 * beat_of(hosts)))  # greetings are over
    first, since = looped(), time.monotonic()
    time.sleep(max(seconds, beat_of(hosts)))
    a_second = (looped() - first) / (time.monotonic() - since)

    launchers[-1]._over.set()  # as where its process has ended: nothing more is said
    launchers[-1]._wake.set()
    launchers[-1]._rolls = None
    since, unaware, known, first = time.monotonic(), set(range(hosts - 1)), [], looped()
    while unaware and time.monotonic() - since < 10 * beat_of(hosts) + 10:
        time.sleep(0.05)
        for host in range(hosts - 1) if rest else ():  # what their watchers say, each at a moment of its own
            if int((time.monotonic() - since) * 20) % 10 == host % 10:
                launchers[host].rests(time.monotonic() - since)
        aware = {host for host in unaware if launchers[host].lost()}
        known += [time.monotonic() - since] if 0 in aware else []
        unaware -= aware
    told = f"{known[0]:.1f} s, by all after {time.monotonic() - since:.1f} s" if known and not unaware else "never"
    kind = "that holds the ranks up" if rest else "for which no rank waits"
    print(f"{hosts:>6} hosts, a word each {beat_of(hosts):4.1f} s: {a_second / 1024:6.2f} KiB/s at the host of the store, "
          f"{a_second / 1024 / hosts:.3f} at another; a loss {kind} is noticed by host 0 after {told} "
          f"({(looped() - first) / 1024 / hosts:.1f} KiB a host)", flush=True)  # fmt: skip
    os._exit(0)  # without the goodbyes of a thousand


def looped() -> int:
    shown = subprocess.run(["ip", "-s", "-j", "link", "show", "lo"], capture_output=True, text=True, check=True).stdout
    return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--simulate", type=int, nargs="+", default=[])
    parser.add_argument("--none-waits", action="store_true", help="simulate a loss that no rank waits for")
    parser.add_argument("--inside", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        simulate(asked.inside, asked.seconds, rest=not asked.none_waits)
    if trouble := why_not():
        sys.exit(trouble)
    for hosts in asked.simulate:
        words = [sys.executable, __file__, "--inside", str(hosts), "--seconds", str(asked.seconds)]
        words += ["--none-waits"] * asked.none_waits
        subprocess.run(["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "_", *words], check=True)
    if asked.simulate:
        return
    print("KiB a second of host " + "  ".join(f"{host:>6}" for host in range(1, asked.hosts + 1)))
    for name, plain in (("torchrun", True), ("distdoctor", False)):
        found = measure(asked.hosts, asked.seconds, plain=plain)
        print(f"{name:>20}  " + "  ".join(f"{one / 1024:6.2f}" for one in found), flush=True)


if __name__ == "__main__":
    main()
