"""
DD115 stuck-in-data: a rank waits for a batch that its DataLoader does not deliver.

What it means    One rank is inside its loader. The worker that makes its batch is blocked on a lock, a sleep, a file or the
                 network, or was stopped. The other ranks wait for this rank in a collective.
Why it hurts     One read holds up every rank, and the error, after 30 minutes, names an innocent one.
How we know      The rank's stack is in torch's DataLoader in every sample; the worker at work on a batch is on the same line in
                 every sample and has not run in between. Workers that wait for an index are idle by design and are not blamed.
                 A lock of the program's that a worker waits for, and that no thread of its own is seen to hold, is taken for one
                 that was held when the worker was forked, as loaders do by default on Linux.
What to do       Check the worker's line. Give reads a timeout; DataLoader(timeout=...) turns the wait into an error that names
                 the loader. Open files and connections inside the worker, not before the fork.
When it is fine  The worker moves or reads: slow data is not stuck data. Where the others have waited for 25 s for one batch, it
                 is told as possible.
Source           torch.utils.data.DataLoader(timeout=...); torch/utils/data/_utils/worker.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, POSSIBLE, WARNING, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.live.obstacle import Obstacle, file_obstacle, forked_lock, obstacle_of
from distdoctor.diagnosis.hang.live.rank_activity import Activity, RankActivity, line_of
from distdoctor.diagnosis.hang.live.stall import Stall, evidence_of, state_of
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.stacks import ProcessStacks
from distdoctor.testing.stacks import FETCH, LOADER, WORKER, frame, in_collective, looked_at, process, rank, torch_frame


@check("DD115", "stuck-in-data", severity=ERROR, family="hang", stalls=Stalls.MAYBE)
def examine(standstill: Stall) -> Iterator[Finding]:
    yield from _together(list(_examined(standstill))) if standstill.stacks.copies else _examined(standstill)


def _together(findings: list[Finding]) -> list[Finding]:
    """One finding of all ranks whose loaders were seen at one line, where copied stacks are all there is."""
    alike: dict[SourceLine, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(finding.place, []).append(finding)
    return [found[0] if len(found) == 1 else _of_all(found) for found in alike.values()]


def _of_all(findings: list[Finding]) -> Finding:
    first, *others = findings
    ranks = tuple(sorted(rank for one in findings for rank in one.ranks))
    rest = "; ".join(f"rank {one.ranks[0]} {one.title}" for one in others[:3])
    makers, *places = first.places
    return replace(
        first,
        title=f"wait for their DataLoaders at one line: rank {first.ranks[0]} {first.title}",
        ranks=ranks,
        places=(replace(makers, ranks=ranks), *places),
        why=f"{first.why}; {rest}",
    )


def _examined(standstill: Stall) -> Iterator[Finding]:
    for standing in standstill.of_kind(Activity.DATA):
        worker = _stuck_worker(standing, standstill)
        at_work = any(_is_at_work(one) for one in standing.seen.workers)
        if standing.rank in standstill.explained:
            continue
        if worker is None and (at_work or not standstill.is_stuck(standing)):
            slow = _slow(standing, standstill)
            if slow is not None:
                yield _at_one_batch(standing, slow, standstill)
            continue
        site = _place(worker) if worker is not None else standing.site
        obstacle = _obstacle(standing, worker, site, standstill)
        yield Finding(
            title=_title(standing, worker, standstill) + (f": {obstacle.words}" if obstacle else ""),
            ranks=(standing.rank,),
            confidence=POSSIBLE if standstill.is_one_moment else standstill.confidence(standing),
            severity=WARNING if standstill.is_one_moment else None,
            place=(obstacle.place if obstacle else None) or site or standing.site,
            places=(
                *_places(standing, worker, site, standstill),
                *(Place(line, (standing.rank,), words) for line, words in (obstacle.also if obstacle else ())),
            ),
            evidence=evidence_of(worker if worker is not None else standing.process)
            | (dict(obstacle.facts) if obstacle else {}),
            why=_why(standing, worker, standstill),
            prescriptions=(
                Prescription("time-out-the-loader", change=_change(worker, site or standing.site, obstacle)),
            ),
            explains=standstill.explains,
        )


def _obstacle(
    standing: RankActivity, worker: ProcessStacks | None, site: SourceLine, standstill: Stall
) -> Obstacle | None:
    """What keeps who makes the batch: the rank itself, or a stuck worker, whose socket may be the loader's own."""
    if worker is None:
        alone = _makes_it_itself(standing)
        return obstacle_of(standing, standstill.stacks, standstill.recording.sources) if alone else None
    if worker.is_stopped:
        return None
    if worker.waits_for is None or worker.waits_for.kind == "socket":
        return forked_lock(worker, site, standstill.recording.sources)
    return file_obstacle(worker, site, standstill.stacks)


def _is_at_work(worker: ProcessStacks) -> bool:
    """Whether a worker is making a batch, rather than waiting for an index."""
    main = worker.main
    return main is not None and main.inside("torch/utils/data/_utils/fetch.py") is not None


def _stuck_worker(standing: RankActivity, standstill: Stall) -> ProcessStacks | None:
    for worker in standing.seen.workers:
        still = worker.still_seconds is None or standstill.exceeds_patience(worker.still_seconds)
        waits = not worker.moved and not worker.is_busy
        if worker.is_stopped or (_is_at_work(worker) and waits and still):
            return worker
    return None


def _slow(standing: RankActivity, standstill: Stall) -> ProcessStacks | None:
    """Who has been making one batch for so long that the others wait: a worker, or the rank itself where it has none."""
    makers = [one for one in standing.seen.workers if _is_at_work(one)]
    if not standing.seen.workers and standing.process is not None:
        makers = [standing.process]
    return next((one for one in makers if standstill.keeps_others_waiting(one)), None)


def _at_one_batch(standing: RankActivity, maker: ProcessStacks, standstill: Stall) -> Finding:
    """It is not still: it polls, or computes. A wait without end looks like this, and slow reading as well."""
    assert maker.lasting is not None
    site, seconds = maker.lasting.site, f"{standstill.waited_seconds:.0f} s"
    is_worker = maker is not standing.process
    who = f"worker {max(maker.worker, 0)} (pid {maker.pid})" if is_worker else f"rank {standing.rank}"
    does = "computes" if maker.is_busy else "looks again and again"
    waits = f"waits for its DataLoader: {who}" if is_worker else "makes a batch itself (num_workers=0):"
    return Finding(
        title=f"{waits}{'' if is_worker else ' it'} has been in {site.function} while the others wait for {seconds}",
        ranks=(standing.rank,),
        confidence=POSSIBLE,
        severity=WARNING,
        place=site,
        places=(Place(site, (standing.rank,), "was inside this call in every sample"), *standstill.places(standing)),
        evidence=evidence_of(maker) | {"function": site.function},
        why=f"{standstill.who_waits}; {who} was in {site.function} in every sample over "
        f"{standstill.stacks.observed_seconds:.1f} s and {does}: a wait without end, or slow reading",
        prescriptions=(Prescription("time-out-the-loader", change=_change(maker if is_worker else None, site)),),
    )


def _place(worker: ProcessStacks) -> SourceLine:
    user = worker.main.user_frame if worker.main is not None else None
    return user.site if user is not None else SourceLine()


def _title(standing: RankActivity, worker: ProcessStacks | None, standstill: Stall) -> str:
    how_long = standstill.how_long(standing)
    if worker is None:
        return f"{'has waited' if how_long else 'waits'} for a batch{how_long}, {_who_makes(standing)}"
    state = f"{'has been' if how_long else 'is'} {'stopped' if worker.is_stopped else 'stuck'}{how_long}"
    if standstill.is_one_moment:
        state = f"is in {_place(worker).function or 'its own code'}, {state_of(worker)}"
    return f"waits for its DataLoader: worker {max(worker.worker, 0)} (pid {worker.pid}) {state}"


def _who_makes(standing: RankActivity) -> str:
    if standing.seen.workers:
        return f"and none of its {len(standing.seen.workers)} worker processes is making one"
    return (
        "which it makes itself (num_workers=0)"
        if _makes_it_itself(standing)
        else "and no worker of its loader is to be seen"
    )


def _makes_it_itself(standing: RankActivity) -> bool:
    main = standing.process.main if standing.process is not None else None
    asks = main is not None and main.inside("torch/utils/data/dataloader.py", "_try_get_data") is not None
    return not standing.seen.workers and not asks


def _places(
    standing: RankActivity, worker: ProcessStacks | None, site: SourceLine, standstill: Stall
) -> tuple[Place, ...]:
    rows = standstill.places(standing)
    if worker is None or not site:
        return rows
    line = line_of(standstill.recording.sources, site).strip()
    return (
        Place(
            site, (standing.rank,), f"worker {max(worker.worker, 0)} is at `{line}`" if line else "its worker is here"
        ),
        *rows,
    )


def _why(standing: RankActivity, worker: ProcessStacks | None, standstill: Stall) -> str:
    parts = [standstill.who_waits] if standstill.who_waits else []
    if worker is not None:
        since = f" and last ran {worker.still_seconds:.0f} s ago" if worker.still_seconds is not None else ""
        parts.append(
            f"worker {max(worker.worker, 0)} of {len(standing.seen.workers)} (pid {worker.pid}) is {state_of(worker)}{since}"
        )
    if standstill.stacks.copies:
        parts.append(standstill.looks)
    return "; ".join(parts)


def _change(worker: ProcessStacks | None, site: SourceLine, obstacle: Obstacle | None = None) -> str:
    if worker is not None and worker.is_stopped:
        return f"kill -CONT {worker.pid}, once you know what stopped it"
    change = obstacle.change if obstacle is not None else f"bound the wait at {site.short}"
    if worker is None:  # torch refuses a timeout of a loader without workers
        return change
    return f"{change}; DataLoader(..., timeout=120) lets the loader report it"


def sick() -> Recording:
    """Rank 1 waits for worker 0, which sleeps in __getitem__; worker 1 has nothing to do."""
    asleep = process(
        frame("data.py:12 __getitem__"),
        torch_frame("fetch", FETCH),
        torch_frame("_worker_loop", WORKER),
        pid=2001,
        worker=0,
    )
    idle = process(
        frame("/usr/lib/python3.11/multiprocessing/queues.py:113 get"),
        torch_frame("_worker_loop", WORKER),
        pid=2002,
        worker=1,
    )
    waiting = rank(1, torch_frame("_next_data", LOADER), frame("train.py:30 main"), still=3.0, workers=(asleep, idle))
    return looked_at(in_collective(0), waiting, sources={"data.py": "\n" * 11 + "        time.sleep(600)\n"})


def healthy() -> Recording:
    """The worker is slow, and at work."""
    busy = process(
        frame("data.py:12 __getitem__"), torch_frame("fetch", FETCH), torch_frame("_worker_loop", WORKER), pid=2001, worker=0,
        still=0.0, cpu_share=0.9,
    )  # fmt: skip
    return looked_at(
        in_collective(0),
        rank(1, torch_frame("_next_data", LOADER), frame("train.py:30 main"), still=3.0, workers=(busy,)),
    )
