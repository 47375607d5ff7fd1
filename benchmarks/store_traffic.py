"""What a launcher sends and receives over the network while its job trains: the signs of life and the exchange between hosts.

    python benchmarks/store_traffic.py [--hosts 3] [--seconds 20]

As root: the hosts are network namespaces (tests/launch/network.py). Their ranks only sleep, so that what the interface of a host
counts is the launcher's own. The same is measured under torchrun alone, whose launchers keep a rendezvous alive too.
"""

from __future__ import annotations

import argparse
import json
import os
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20)
    asked = parser.parse_args()
    if trouble := why_not():
        sys.exit(trouble)
    print("KiB a second of host " + "  ".join(f"{host:>6}" for host in range(1, asked.hosts + 1)))
    for name, plain in (("torchrun", True), ("distdoctor", False)):
        found = measure(asked.hosts, asked.seconds, plain=plain)
        print(f"{name:>20}  " + "  ".join(f"{one / 1024:6.2f}" for one in found), flush=True)


if __name__ == "__main__":
    main()
