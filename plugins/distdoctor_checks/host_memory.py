"""
DD413 host-memory: the host's memory, or /dev/shm, is what the job runs out of.

What it means    Every rank starts DataLoader workers, every worker is a process with its own copy of what Python touches, and
                 their batches lie in /dev/shm until they are taken: ranks x workers x prefetch adds up.
Why it hurts     The kernel ends processes without a word (exit code -9), or a worker dies of a bus error.
How we know      A worker's own last words name the shared memory (certain). Otherwise: less than 5 % of the host's memory (or of
                 the container's limit) was left, and ranks and workers hold more than half of it (likely).
What to do       Fewer workers, a smaller prefetch_factor, no copies in Python objects (arrays instead of lists), --shm-size.
When it is fine  A full machine whose memory others hold: this job is not to blame, and nothing is reported.
Source           torch.utils.data.DataLoader, notes on multiprocessing; docker run --shm-size.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, WARNING, Cure, Finding
from distdoctor.diagnosis.memory import MIB, Memory, RankMemory, mib
from distdoctor.recording.layout import EventKind
from distdoctor.recording.recording import Recording

LEFT = 0.05  # of the host's memory
OWN_SHARE = 0.5  # of it that this job holds
# torch/utils/data/_utils/signal_handling.py and the storage's shared-memory code (2.11-2.15)
_SHARED = re.compile(
    r"out of shared memory|unable to (mmap|write|open|resize) .*shared|/dev/shm|killed by signal: Bus error|/torch_\d+.*"
    r"No space left"
)


@check("DD413", "host-memory", severity=WARNING)
def examine(memory: Memory) -> Iterator[Finding]:
    died = {rank.rank: words for rank in memory.each() if (words := _last_words(rank))}
    if died:
        yield _shared_memory(memory, died)
        return
    by_host: dict[str, list[RankMemory]] = defaultdict(list)
    for rank in memory.each():
        by_host[rank.log.host].append(rank)
    for host, ranks in sorted(by_host.items()):
        found = _short(host, ranks)
        if found is not None:
            yield found


def _last_words(rank: RankMemory) -> str:
    events = rank.log.events[rank.log.events["kind"] == EventKind.EXCEPTION]
    words = [rank.log.text(int(event["text"])) for event in events]
    return next((one for one in words if _SHARED.search(one)), "")


def _shared_memory(memory: Memory, died: dict[int, str]) -> Finding:
    ranks = tuple(sorted(died))
    one = memory.ranks[ranks[0]]
    size, free = one.last("shm_size"), one.last("shm_free")
    return Finding(
        title="a DataLoader worker found no room in shared memory",
        ranks=ranks,
        place=one.site,
        evidence={"exception": died[ranks[0]], "shm_size": size, "shm_free": free, "workers": one.most("workers")},
        why=f"{' '.join(died[ranks[0]].split())[:200]}"
        + (f"; /dev/shm has {mib(size)}, {mib(free)} of it were free when it was looked at last" if size else ""),
        cures=(
            Cure("lower-host-memory", change="docker run --shm-size, or fewer workers and a smaller prefetch_factor"),
        ),
        confidence=CERTAIN,
        severity=ERROR,
        at_ns=one.at_ns,
    )


def _short(host: str, ranks: list[RankMemory]) -> Finding | None:
    limit = max(rank.last("limit") for rank in ranks)
    left = min(int(rank.rows["available"][rank.rows["limit"] > 0].min(initial=limit)) for rank in ranks)
    own = sum(rank.most("rss") - int(rank.rows["shared"].min(initial=0)) for rank in ranks)
    workers, theirs = sum(rank.most("workers") for rank in ranks), sum(rank.most("workers_rss") for rank in ranks)
    if not limit or left >= LEFT * limit or own + theirs < OWN_SHARE * limit:
        return None
    numbers = tuple(rank.rank for rank in ranks)
    return Finding(
        title=f"{mib(left)} of {mib(limit)} host memory were left",
        ranks=numbers,
        place=ranks[0].site,
        evidence={
            "host": host,
            "available": left,
            "limit": limit,
            "ranks": own,
            "workers": theirs,
            "processes": workers,
        },
        why=f"{len(ranks)} ranks hold {mib(own)}" + (f", their {workers} workers {mib(theirs)}" if workers else ""),
        cures=(Cure("lower-host-memory", effect=f"{mib(theirs / workers)} for each worker less" if workers else ""),),
        confidence=LIKELY,
    )


def sick() -> Recording:
    from distdoctor.testing.memory import memory_job

    host: dict[str, Any] = {"limit": 64_000 * MIB, "available": 900 * MIB, "workers": 16, "workers_rss": 24_000 * MIB}
    return memory_job(2).trains(16, rss=4_000 * MIB, **host).recording()


def healthy() -> Recording:
    """The machine is full, of others."""
    from distdoctor.testing.memory import memory_job

    host: dict[str, Any] = {"limit": 64_000 * MIB, "available": 900 * MIB, "workers": 4, "workers_rss": 2_000 * MIB}
    return memory_job(2).trains(16, rss=4_000 * MIB, **host).recording()
