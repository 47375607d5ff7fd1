"""Put together what several hosts saw of one job: one recording, as if one host had seen it all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from distdoctor.errors import WrongUse
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Attempt, Job, RankEnd, RankTrace, Recording
from distdoctor.recording.stacks import RankStacks, Stacks
from distdoctor.recording.trace.host_file import merged_ends, still_lost


def merged(parts: Sequence[Recording]) -> Recording:
    """The recording of the job that these are parts of: the newest start of its ranks, over all of them.

    WrongUse: they are parts of different jobs.
    """
    if len(parts) == 1:
        return parts[0]
    newest = max(part.job.attempt for part in parts)
    now = [part for part in parts if part.job.attempt == newest]
    _require_one_job(now)
    job = _job(parts, newest)
    ranks: dict[int, RankTrace] = {}
    for part in now:
        for rank, log in part.ranks.items():
            ranks[rank] = _fuller(ranks[rank], log) if rank in ranks else log
    recorded = [part.streams for part in now if part.ranks]
    return Recording(
        job=replace(job, world_size=max(part.world_size for part in now)),
        ranks=dict(sorted(ranks.items())),
        streams=frozenset.intersection(*recorded) if recorded else frozenset(),
        troubles=tuple(dict.fromkeys(trouble for part in parts for trouble in part.troubles)),
        sources=_sources(parts),
        stacks=joined_stacks([part.stacks for part in now if part.stacks is not None]),
        clues=tuple(clue for part in now for clue in part.clues),
        backend={rank: state for part in now for rank, state in part.backend.items()},
        comparison=next((part.comparison for part in parts if part.comparison), None),
        ras=next((part.ras for part in now if part.ras is not None), None),
        resumption=next((part.resumption for part in parts if part.resumption), None),
        seen_live=tuple(seen for part in now for seen in part.seen_live),
        unread=frozenset(rank for part in now for rank in part.unread) - ranks.keys(),
    )


def _require_one_job(parts: Sequence[Recording]) -> None:
    """One rank of one start is one process, and every host knows how many there are."""
    writers: dict[int, object] = {}
    sizes = {part.world_size for part in parts if part.ranks and part.job.world_size}
    if len(sizes) > 1:
        raise WrongUse(
            f"these are recordings of different jobs: one has {min(sizes)} ranks, another {max(sizes)}",
            way_out="Examine each job by itself.",
        )
    for part in parts:
        for rank, log in part.ranks.items():
            writer = (log.process, log.pid, log.host) if log.pid else None
            if writers.setdefault(rank, writer) != writer:
                raise WrongUse(
                    f"these are recordings of different jobs: {named((rank,))} is two processes",
                    way_out="Examine each job by itself.",
                )


def by_job(parts: Iterable[tuple[str, Recording]]) -> list[list[tuple[str, Recording]]]:
    """What several hosts saw of several jobs, each with the name of its host: the parts of each job together, in their order."""
    jobs: list[list[tuple[str, Recording]]] = []
    for part in parts:
        fitting = (job for job in jobs if all(_is_of_one_job(part, other) for other in job))
        known = next(fitting, None)
        if known is None:
            jobs.append([part])
        else:
            known.append(part)
    return jobs


def _is_of_one_job(one: tuple[str, Recording], other: tuple[str, Recording]) -> bool:
    """Whether two hosts may have seen the same job: no host has two parts of one, and no rank is a process on two hosts."""
    sizes = {one[1].world_size, other[1].world_size} - {0}  # 0: a launcher that waits for other hosts
    if one[0] == other[0] or len(sizes) > 1:
        return False
    try:
        _require_one_job([one[1], other[1]])
    except WrongUse:
        return False
    there = [{rank for rank, _ in part.stacks.processes()} if part.stacks else set() for _, part in (one, other)]
    return there[0].isdisjoint(there[1])


def _sources(parts: Sequence[Recording]) -> dict[str, str]:
    """The texts of files; of one that is not the same on all hosts none, because nobody could say whose lines they are."""
    texts: dict[str, set[str]] = {}
    for part in parts:
        for path, text in part.sources.items():
            texts.setdefault(path, set()).add(text)
    return {path: next(iter(found)) for path, found in texts.items() if len(found) == 1}


def _fuller(one: RankTrace, other: RankTrace) -> RankTrace:
    """Of two readings of one rank the later one, and of equally late ones the longer."""
    late = [int(log.calls["seq"][-1]) if len(log.calls) else 0 for log in (one, other)]
    return other if (late[1], len(other.calls)) > (late[0], len(one.calls)) else one


def _job(parts: Sequence[Recording], newest: int) -> Job:
    now = [part.job for part in parts if part.job.attempt == newest]
    earlier: dict[int, Attempt] = {}
    for start in _starts_before(parts, newest):
        known = earlier.get(start.number, start)
        earlier[start.number] = replace(
            known,
            world_size=max(known.world_size, start.world_size),
            ranks=tuple(sorted({*known.ranks, *start.ranks})),
            ends=merged_ends(known.ends, start.ends),
        )
    ends: Mapping[int, RankEnd] = {}
    for job in now:
        ends = merged_ends(ends, job.ends)
    codes = [job.exit_code for job in now if job.exit_code is not None]
    return replace(
        now[0],
        ends=ends,
        running=any(job.running for job in now),
        exit_code=max(codes, key=abs, default=None),
        read_at_ns=max(job.read_at_ns for job in now),
        read_wall_ns=max(job.read_wall_ns for job in now),
        earlier=tuple(earlier[number] for number in sorted(earlier)),
        interrupted=max(job.interrupted for job in now),
        hosts=max(job.hosts for job in now),
        end_unseen=any(job.end_unseen for job in now),
        lost=still_lost((one for job in now for one in job.lost), ()),
        started=tuple(sorted({rank for job in now for rank in job.started})) if all(job.started for job in now) else (),
    )


def _starts_before(parts: Sequence[Recording], newest: int) -> Iterable[Attempt]:
    for part in parts:
        yield from part.job.earlier
        if part.job.attempt < newest:
            yield Attempt(part.job.attempt, part.job.world_size, tuple(part.ranks), part.job.ends)


def joined_stacks(found: Sequence[Stacks]) -> Stacks | None:
    """One look at the whole job. A rank that some host saw is nowhere else, and absent nowhere."""
    if not found:
        return None
    ranks: dict[int, RankStacks] = {}
    for look in found:
        for rank, seen in look.ranks.items():
            if rank not in ranks or ranks[rank].process is None:
                ranks[rank] = seen
    elsewhere = {rank for look in found for rank in look.elsewhere} - ranks.keys()
    return replace(
        found[0],
        ranks=dict(sorted(ranks.items())),
        elsewhere=tuple(sorted(elsewhere)),
        launcher=next((look.launcher for look in found if look.launcher is not None), None),
        observed_seconds=min(look.observed_seconds for look in found),
    )
