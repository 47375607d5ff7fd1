"""
DD413 host-memory: the job runs out of host memory or /dev/shm.

What it means    Every rank starts DataLoader workers. Each worker is a process with its own copy of the memory that Python
                 touches, and its batches stay in /dev/shm until they are consumed: ranks x workers x prefetch adds up.
Why it hurts     The kernel kills processes without an error message (exit code -9), or a worker dies of a bus error.
How we know      A worker's own error names shared memory (certain). A worker disappeared just when the kernel counted an
                 out-of-memory kill (likely). Otherwise: less than 5 % of the host's memory (or the container's limit) was left,
                 and ranks and workers hold more than half of it (likely). A note, possible: the dataset keeps a large list or
                 dictionary of Python objects, of which a few were weighed. Reading one writes its reference count, so each
                 worker that was forked gets a copy of its page: memory grows until every worker holds all of it. Possible, too:
                 workers that outlive the epoch have grown steadily by 64 MiB and a tenth, over two epochs or more; a note
                 where they have grown by 256 MiB and two fifths within the first.
What to do       Use fewer workers, a smaller prefetch_factor, no copies in Python objects (arrays instead of lists), a larger
                 --shm-size. Bound what a worker keeps between samples.
When it is fine  A full machine whose memory other jobs hold: this job is not to blame, and nothing is reported.
Source           torch.utils.data.DataLoader, notes on multiprocessing; docker run --shm-size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from distdoctor.diagnosis.check import NotApplicable, check
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.hang.ending import Ending
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import by_site
from distdoctor.diagnosis.memory.memory import MIB, Memory, RankMemory, mib
from distdoctor.diagnosis.memory.oom_message import lost_its_worker, shared_memory_in
from distdoctor.diagnosis.source.rank_guard import statement_at
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine

LEFT = 0.05  # of the host's memory
OWN_SHARE = 0.5  # of it that this job holds
COPIED = 64 * MIB  # by the workers of all ranks together
GROWN, GROWN_SHARE = 64 * MIB, 0.1  # by the workers of one rank; the part of what they hold
GROWN_AT_FIRST, GROWN_AT_FIRST_SHARE = 256 * MIB, 0.4  # the same within the first pass


@check("DD413", "host-memory", severity=WARNING, family="hang", stands_alone=True, specificity=30)
def examine(verdict: Verdict | None, memory: Memory | None, orders: SampleOrders | None) -> Iterator[Finding]:
    told = [_worker(verdict, incident, memory) for incident in _died(verdict)] if verdict is not None else []
    yield from told
    copied = _copied(orders) if orders is not None and not told else None
    if copied is not None:
        yield copied
    if memory is not None and orders is not None and not told:
        yield from _growing(memory, orders)
    if memory is None and not told and orders is None:
        raise NotApplicable("no memory was recorded")
    by_host: dict[str, list[RankMemory]] = defaultdict(list)
    for rank in memory.each() if memory is not None and not told else ():
        by_host[rank.log.host].append(rank)
    for host, ranks in sorted(by_host.items()):
        found = _short(host, ranks)
        if found is not None:
            yield found


def _died(verdict: Verdict) -> Iterator[Incident]:
    """The events in which a worker found no room in shared memory, or was killed for lack of memory."""
    for incident in verdict.of_kind(IncidentKind.FAILED):
        if incident.ending is not None:
            end = verdict.recording.job.ends.get(incident.ending.rank)
            if shared_memory_in(incident.ending.words) or lost_its_worker(incident.ending.words, end):
                yield incident


def _worker(verdict: Verdict, incident: Incident, memory: Memory | None) -> Finding:
    ending = incident.ending
    assert ending is not None
    own = memory.ranks.get(ending.rank) if memory is not None else None
    place, words = ending.site, shared_memory_in(ending.words)
    line = statement_at(verdict.recording.sources, place) if place else ""
    echoes = sorted(rank for rank, other in verdict.endings.items() if other.victim and rank not in incident.ranks)
    stuck = [call for wait in incident.waiting for call in wait.calls]
    role = "requested the batch" + (f": `{line[:80]}`" if line else "")
    cause = _no_room(words, own) if words else _killed(verdict, ending, own)
    return replace(
        cause,
        ranks=incident.ranks,
        place=place,
        places=(*([Place(place, incident.ranks, role)] if place else []), *by_site(verdict, stuck)),
        evidence={
            **cause.evidence,
            "exception": ending.words,
            "workers": own.most("workers") if own else 0,
            "traceback": ending.traceback,
            "failed_after_it": echoes,
        },
        why=cause.why
        + (f"; {named(echoes)} failed afterwards because a peer was gone" if echoes else "")
        + (f"; its traceback is in the run folder ({ending.traceback})" if ending.traceback else ""),
        severity=ERROR,
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _no_room(words: str, own: RankMemory | None) -> Finding:
    size, free = (own.last("shm_size"), own.last("shm_free")) if own else (0, 0)
    seen = f"; /dev/shm has {mib(size)}, {mib(free)} of it free at the last check" if size else ""
    change = "a larger /dev/shm (docker run --shm-size), smaller batches, fewer workers or a smaller prefetch_factor"
    return Finding(
        title="a DataLoader worker found no room in shared memory",
        evidence={"shm_size": size, "shm_free": free},
        why=words[:200] + seen,
        prescriptions=(Prescription("lower-host-memory", change=change),),
        confidence=CERTAIN,
    )


def _killed(verdict: Verdict, ending: Ending, own: RankMemory | None) -> Finding:
    end = verdict.recording.job.ends[ending.rank]
    limit = (
        f"its cgroup's limit of {mib(end.memory_limit)} was reached" if end.memory_limit else "the host had none left"
    )
    workers, held = (own.most("workers"), own.most("workers_rss")) if own else (0, 0)
    seen = f"; its {workers} worker{'s' * (workers > 1)} held {mib(held)} when last measured" if held else ""
    kills = "1 kill" if end.kernel_kills == 1 else f"{end.kernel_kills} kills"
    change = "fewer workers, a smaller prefetch_factor, no dataset cache that each worker fills for itself"
    return Finding(
        title=f"a DataLoader worker was killed by the kernel because memory ran out: {limit}",
        evidence={"kernel_kills": end.kernel_kills, "counter": end.kernel_counter, "limit_bytes": end.memory_limit},
        why=f"the worker is gone, and {end.kernel_counter} counts {kills} at that time{seen}",
        prescriptions=(Prescription("lower-host-memory", change=change),),
        confidence=LIKELY,
    )


def _copied(orders: SampleOrders) -> Finding | None:
    """The data set of which the workers of all ranks copy most Python objects."""
    loaders: dict[SourceLine, dict[int, LoaderPass]] = defaultdict(dict)
    for rank, passes in orders.by_rank.items():
        for one in passes:
            if one.workers and one.data.object_bytes:
                loaders[one.made_line][rank] = one
    costs = {
        line: sum(one.workers * one.data.object_bytes for one in found.values()) for line, found in loaders.items()
    }
    line = max(costs, key=lambda line: costs[line], default=None)
    if line is None or costs[line] < COPIED:
        return None
    found = loaders[line]
    one, ranks, workers = found[min(found)], tuple(sorted(found)), sum(one.workers for one in found.values())
    where = f"{one.data.name}.{one.data.objects.partition(' ')[2]}"
    return Finding(
        title=f"{where} holds {mib(one.data.object_bytes)} of Python objects, which {workers} workers copy page by page as they "
        "read them",
        ranks=ranks,
        severity=NOTE,
        confidence=POSSIBLE,
        place=line or one.loop_line,
        places=(Place(line, ranks, f"the loader is created, {one.workers} workers a rank"),),
        evidence={
            "dataset": one.data.name,
            "bytes": one.data.object_bytes,
            "workers": workers,
            "bytes_in_all": costs[line],
        },
        why=f"a forked worker shares the memory of its rank until it writes to it, and reading a Python object writes its "
        f"reference count: up to {mib(costs[line])} on all ranks together",
        prescriptions=(
            Prescription(
                "lower-host-memory",
                change=f"keep {where} in an array (numpy, torch or pyarrow) instead of Python objects",
                effect=f"up to {mib(costs[line])} less",
            ),
        ),
        at_ns=one.started_ns,
    )


def _growing(memory: Memory, orders: SampleOrders) -> Iterator[Finding]:
    """Workers that keep more and more, from epoch to epoch: a cache of theirs that is full levels off within one."""
    found = {}
    for rank in memory.each():
        passes = [one for one in orders.by_rank.get(rank.rank, ()) if one.workers]
        each, grown, steps = rank.growth_of_workers()
        # Within the first pass a cache that has room for everything grows as well.
        least, share = (GROWN, GROWN_SHARE) if len(passes) >= 2 else (GROWN_AT_FIRST, GROWN_AT_FIRST_SHARE)
        if passes and grown >= max(least, share * rank.most("workers_rss")):
            found[rank.rank] = (passes, each, grown, steps)
    if not found:
        return
    ranks = tuple(sorted(found))
    passes, each, grown, steps = max(found.values(), key=lambda own: own[1])
    one, turns = passes[-1], len(passes)
    line = one.made_line or one.loop_line
    grow = "worker of the loader grows" if one.workers == 1 else f"{one.workers} workers of the loader grow"
    yield Finding(
        title=f"the {grow} by {mib(each)} every step",
        ranks=ranks,
        confidence=POSSIBLE,
        severity=WARNING if turns >= 2 else NOTE,
        place=line,
        places=(Place(line, ranks, f"the loader is created, {one.workers} workers a rank"),),
        evidence={"dataset": one.data.name, "workers": one.workers, "bytes": grown, "bytes_per_step": round(each)},
        why=f"{mib(grown)} more within {steps} steps, in every part of them, over {turns} {'passes' if turns > 1 else 'pass'}: "
        f"something of {one.data.name or 'the dataset'} outlives the sample in each worker",
        prescriptions=(
            Prescription(
                "lower-host-memory",
                change=f"bound what {one.data.name or 'the dataset'} keeps between samples (a cache whose keys do not come "
                "again), or leave out persistent_workers",
            ),
        ),
        at_ns=one.started_ns,
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
        title=f"only {mib(left)} of {mib(limit)} of host memory was left",
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
        why=f"{len(ranks)} ranks hold {mib(own)}" + (f", and their {workers} workers {mib(theirs)}" if workers else ""),
        prescriptions=(
            Prescription(
                "lower-host-memory", effect=f"{mib(theirs / workers)} less for each worker removed" if workers else ""
            ),
        ),
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
