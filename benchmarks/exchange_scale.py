"""What the hosts of a large job hand each other at its end, on a real store: what one sends, what the store holds, and how long
host 0 takes to have everything and to judge it, and what every other host takes: the verdict of host 0.

    python benchmarks/exchange_scale.py [--hosts 64 256 1280] [--recorded FOLDER] [--bytes-only]

The bundles are those of a real training of eight ranks (`distdoctor run --strategy ddp`; FOLDER is one that was recorded before),
under the numbers of each host's ranks. All but host 0 have given theirs when it begins to take them, on a connection of its own.
Up to 32 hosts all do the same as host 0: the store hands out their bundles once for each host. With `--bytes-only` all give
the bundle of host 1, which is received and not unpacked: for more ranks than the memory of one machine holds.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.sent_verdict import pack_verdict
from distdoctor.launch import exchange
from distdoctor.launch.exchange import FINAL, Exchange
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.recording.bundle import pack
from distdoctor.recording.merge import merged
from distdoctor.recording.recording import RankEnd, Recording
from distdoctor.recording.trace.layout import ranks_of, ranks_text
from distdoctor.recording.trace.process_key import ProcessKey
from distdoctor.recording.trace.run_folder import read_run

RANKS_OF_A_HOST = 8


def real_host() -> Recording:
    """Eight ranks of a healthy training."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["run", "--strategy", "ddp", "--nproc", str(RANKS_OF_A_HOST), "--run-dir", f"{folder}/run"]
        subprocess.run([sys.executable, "-m", "distdoctor", *command], cwd=folder, check=True, capture_output=True)
        return read_run(Path(folder) / "run")


def as_host(found: Recording, host: int, hosts: int) -> Recording:
    """The recording as that of one of so many hosts."""
    world = hosts * RANKS_OF_A_HOST
    everybody = ranks_text(range(world))
    ranks, ends = {}, {}
    for number, log in found.ranks.items():
        rank = host * RANKS_OF_A_HOST + number
        texts = tuple(everybody if len(ranks_of(text)) == RANKS_OF_A_HOST else text for text in log.texts)
        process = ProcessKey(log.pid, 1, f"node{host}", f"{host:032x}")
        ranks[rank] = replace(log, rank=rank, texts=texts, world_size=world, host=f"node{host}", process=process)
        ends[rank] = RankEnd(0, at_ns=1 << 62)
    return replace(found, job=replace(found.job, world_size=world, ends=ends, hosts=hosts), ranks=ranks, seen_live=())


def at_store(port: int, host: int, hosts: int, client: Any) -> Exchange:
    """The exchange of one host."""
    rendezvous = Rendezvous()
    rendezvous.store, rendezvous.hosts, rendezvous.host_number = client, hosts, host
    return Exchange(rendezvous)


def measure(found: Recording, hosts: int, *, bytes_only: bool) -> None:
    """Print one line."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False)
    sizes = []
    data = pack(as_host(found, 1, hosts))
    for host in range(1, hosts):
        data = data if bytes_only else pack(as_host(found, host, hosts))
        sizes.append(len(data))
        one = at_store(server.port, host, hosts, client)
        one.join_attempt()
        one.put(client, host, (1, data, FINAL))
    unpacked = exchange.unpack
    if bytes_only:
        exchange.unpack = lambda data, source: found
    try:
        first, wall, cpu = at_store(server.port, 0, hosts, client), time.monotonic(), time.process_time()
        others = first.take_last_words(time.monotonic() + 3600)
    finally:
        exchange.unpack = unpacked
    took, took_cpu = time.monotonic() - wall, time.process_time() - cpu
    line = (
        f"{hosts:6} hosts {hosts * RANKS_OF_A_HOST:7} ranks: a host sends {sum(sizes) / len(sizes) / 1024:5.1f} KiB, "
    )
    line += f"the store holds {sum(sizes) / 2**20:6.1f} MiB; "
    line += f"host 0 has all after {took:6.1f} s ({took_cpu:6.1f} CPU s)"
    if not bytes_only:
        cpu = time.process_time()
        whole = merged([as_host(found, 0, hosts), *others])
        checks = list(plugins.load().checks.values())
        diagnosis = examine(replace(whole, job=replace(whole.job, running=False)), checks)
        codes = ", ".join(finding.code for finding in diagnosis.findings) or "nothing"
        line += f", judges {len(whole.ranks)} ranks in {time.process_time() - cpu:6.1f} CPU s ({codes})"
        verdict = len(pack_verdict(diagnosis))
        one_judges = hosts > exchange.ALL_JUDGE_UP_TO
        handed = sum(sizes) + verdict * (hosts - 1) if one_judges else sum(sizes) * (hosts - 1)
        line += f"; another host takes {verdict / 1024 if one_judges else sum(sizes) / 1024:.1f} KiB, "
        line += f"the store hands out {handed / 2**20:.1f} MiB"
    print(f"{line}, peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[64, 256, 1280])
    parser.add_argument("--recorded", type=Path, help="run folder of a job of eight ranks on this host")
    parser.add_argument("--bytes-only", action="store_true", help="receive the bundles, unpack none")
    asked = parser.parse_args(arguments)
    found = read_run(asked.recorded) if asked.recorded else real_host()
    for hosts in asked.hosts:
        measure(found, hosts, bytes_only=asked.bytes_only)


if __name__ == "__main__":
    main()
