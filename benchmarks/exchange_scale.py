"""What the hosts of a large job hand each other at its end, on a real store: what one sends, what the store holds, and how long
host 0 takes to have everything and to judge it, and what every other host takes: the verdict of host 0.

    python benchmarks/exchange_scale.py [--hosts 64 256 1280] [--recorded FOLDER]

The bundles are those of a real training of eight ranks (`distdoctor run --strategy ddp`; FOLDER is one that was recorded before),
under the numbers of each host's ranks; what replicas hold is the same on all, and so are the times. All but host 0 have given
theirs, each after the other and by one connection, when it begins to take them in a process of its own. Up to 32 hosts all do the
same as host 0: the store hands out their bundles once for each host. From the second host on a bundle is that of host 1 with
other numbers: to pack each anew would take as long as all that is measured.
"""

from __future__ import annotations

import argparse
import lzma
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.sent_verdict import pack_verdict
from distdoctor.launch import exchange
from distdoctor.launch.exchange import FINAL, Exchange
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.recording.alike_parts import FILTERS
from distdoctor.recording.bundle import MAGIC, pack
from distdoctor.recording.merge import merged
from distdoctor.recording.recording import RankEnd, Recording
from distdoctor.recording.trace.layout import ranks_of, ranks_text
from distdoctor.recording.trace.process_key import ProcessKey
from distdoctor.recording.trace.run_folder import read_run

RANKS_OF_A_HOST = 8


def record(folder: Path) -> None:
    """Eight ranks of a healthy training."""
    command = ["run", "--strategy", "ddp", "--nproc", str(RANKS_OF_A_HOST), "--run-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "distdoctor", *command], cwd=folder.parent, check=True, capture_output=True)


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


class Counted:
    """A connection to the store that counts what is written, for all hosts that are played here."""

    def __init__(self, client: Any) -> None:
        self._client, self.written, self.questions = client, 0, 0

    def clone(self) -> Counted:
        return self

    def __getattr__(self, name: str) -> Any:
        self.questions += name != "set_timeout"
        return getattr(self._client, name)

    def set(self, key: str, value: bytes | str) -> None:
        self.questions += 1
        self.written += len(key) + len(value)
        self._client.set(key, value)


def at_store(host: int, hosts: int, client: Any) -> Exchange:
    """The exchange of one host."""
    rendezvous = Rendezvous()
    rendezvous.store, rendezvous.hosts, rendezvous.host_number = client, hosts, host
    return Exchange(rendezvous)


@dataclass(frozen=True)
class Taken:
    """By host 0: the seconds, the seconds of a processor, what it judges, its memory at most."""

    seconds: float
    cpu: float
    judged_cpu: float
    codes: str
    verdict_bytes: int
    peak_mib: int
    has_all_mib: int  # when all bundles were there
    before_mib: int


def peak_mib() -> int:
    """Of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def renumbered(bundle: bytes, host: int) -> bytes:
    """The bundle of host 1 as that of another."""
    head = len(MAGIC) + 1
    found, ahead = msgspec.msgpack.decode(lzma.decompress(bundle[head:])), (host - 1) * RANKS_OF_A_HOST
    for one in found["ranks"]:
        one["rank"] += ahead
        one["host"] = one["process"]["host"] = f"node{host}"
        one["process"]["boot"] = f"{host:032x}"
    found["job"]["ends"] = {rank + ahead: end for rank, end in found["job"]["ends"].items()}
    return bundle[:head] + lzma.compress(msgspec.msgpack.encode(found), check=lzma.CHECK_CRC32, filters=FILTERS)


def as_host_0(port: int, recorded: Path, hosts: int, into: Any) -> None:
    """What host 0 does, in a process of its own: take all bundles, judge, pack the verdict."""
    found, client = read_run(recorded), dist.TCPStore("127.0.0.1", port, is_master=False)
    checks = list(plugins.load().checks.values())
    one, before = at_store(0, hosts, client), peak_mib()
    wall, cpu = time.monotonic(), time.process_time()
    others = one.take_last_words(wall + 3600)
    seconds, took_cpu = time.monotonic() - wall, time.process_time() - cpu
    has_all, cpu = peak_mib(), time.process_time()
    whole = merged([as_host(found, 0, hosts), *others])
    diagnosis = examine(replace(whole, job=replace(whole.job, running=False)), checks)
    codes = ", ".join(finding.code for finding in diagnosis.findings) or "nothing"
    verdict = len(pack_verdict(diagnosis))
    into.put(Taken(seconds, took_cpu, time.process_time() - cpu, codes, verdict, peak_mib(), has_all, before))


def measure(recorded: Path, hosts: int) -> None:
    """Print what a job of so many hosts costs."""
    found = read_run(recorded)
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = Counted(dist.TCPStore("127.0.0.1", server.port, is_master=False))
    first, same = 0, b""
    for host in range(1, hosts):
        one = at_store(host, hosts, client)
        if first:
            one.join_attempt()
            one.put(client, host, (1, renumbered(same, host), FINAL))
        else:
            part = as_host(found, host, hosts)
            one.give(part, final=True)
            first, same = client.written, pack(part, {})
    others = (client.written - first) / max(1, hosts - 2)
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.SimpleQueue()
    host_0 = spawn.Process(target=as_host_0, args=(server.port, recorded, hosts, answers))
    host_0.start()
    taken = answers.get()
    host_0.join()
    one_judges = hosts > exchange.ALL_JUDGE_UP_TO
    handed = client.written + taken.verdict_bytes * (hosts - 1) if one_judges else client.written * (hosts - 1)
    print(
        f"{hosts} hosts, {hosts * RANKS_OF_A_HOST} ranks: the first sends {first / 1024:.1f} KiB, each further one "
        f"{others / 1024:.1f} KiB ({client.questions / (hosts - 1):.0f} questions); the store holds "
        f"{client.written / 2**20:.1f} MiB and hands out {handed / 2**20:.1f} MiB\n"
        f"    host 0 has all after {taken.seconds:.1f} s ({taken.cpu:.1f} CPU s), judges in {taken.judged_cpu:.1f} CPU s "
        f"({taken.codes}), peak {taken.peak_mib} MiB, {taken.before_mib} before it began, {taken.has_all_mib} with all bundles"
        + (f"; another host takes a verdict of {taken.verdict_bytes / 1024:.1f} KiB" if one_judges else ""),
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[64, 256, 1280])
    parser.add_argument("--recorded", type=Path, help="run folder of a job of eight ranks on this host")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        recorded = asked.recorded or Path(made) / "run"
        if not asked.recorded:
            record(recorded)
        for hosts in asked.hosts:
            measure(recorded, hosts)


if __name__ == "__main__":
    main()
