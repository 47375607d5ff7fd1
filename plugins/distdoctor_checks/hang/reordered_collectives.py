"""
DD107 reordered-collectives: some ranks call the same collectives in a different order.

What it means    One rank issues two collectives of a group in the opposite order.
Why it hurts     Different operations or sizes pair up: a hang or an abort. If operation and size are equal, nothing hangs, and
                 each result silently goes to the wrong tensor.
How we know      If the sizes differ, the odd rank's two calls are the other ranks' two calls, swapped. If they are equal, the
                 source decides: at two successive numbers the odd rank went through the same two places, swapped (likely, not
                 certain). A place is a call with the user's calls that led to it, so that two calls on one line, or through
                 one helper, are told apart; in the two branches of a condition the calls are compared as they are written. Where
                 the calls of one line do not differ at all, the source may show that they go through a set of texts, whose
                 order depends on the hash seed: it is told where the recorded hashes of the ranks differ (likely as well).
                 So is a line that meets itself with another size in a loop over a dict which is filled under keys of the data,
                 where the source makes each size of its key alone.
                 Two threads: where ranks stand or part in a group, and a thread of the program issued a call on it while that
                 of another thread was not over (likely: which call came first is up to the scheduler of each host).
What to do       Issue collectives in one order: iterate over sorted names, not over a set or in order of arrival. A thread
                 that communicates gets a group of its own.
When it is fine  Ranks that take an entirely different path through the source; a condition on the rank that sends each turn of
                 a loop through one line or the other (`if owner == rank`).
Source           torch.distributed: collectives are matched by the order in which they are called.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, LIKELY, POSSIBLE, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.hash_order import HashOrder, hash_order_of, hash_orders
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.apart import RanksApart
from distdoctor.diagnosis.hang.live.sides import KEY
from distdoctor.diagnosis.hang.live.stack_threads import CrossedThreads, crossed_threads
from distdoctor.diagnosis.hang.live.stack_waits import line_of
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.hang.played import agrees_without
from distdoctor.diagnosis.hang.program import SWAPPED
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import (
    at,
    by_site,
    condition,
    full,
    group_words,
    of_variants,
    short,
    tipped,
)
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, Recording
from distdoctor.testing import recording


@check("DD107", "reordered-collectives", severity=ERROR, family="hang", stalls=Stalls.FOREVER, specificity=70)
def examine(verdict: Verdict | None, standstill: Stall | None, apart: RanksApart | None) -> Iterator[Finding]:
    if verdict is None:
        crossed = crossed_threads(standstill) if standstill is not None else None
        if crossed is not None:
            yield _of_seen_threads(crossed, tuple(standstill.standings) if standstill is not None else ())
        if apart is not None and apart.sides is not None and (loop := apart.sides.set_loop) is not None:
            change = f"go through sorted({loop.text}) at {at(loop.loop)}"
            yield apart.sides.of_one_loop("same-order", change, loop)
        return
    for incident in verdict.of_kind(IncidentKind.DIVERGED, IncidentKind.SWAPPED, IncidentKind.TOGETHER):
        if incident.crossed is not None:
            yield _of_threads(verdict, incident, *incident.crossed)
        elif (order := hash_order_of(verdict, incident)) is not None:
            yield (_apart_by_keys if order.loop.of_dict else _apart_by_hash)(verdict, incident, order)
        elif incident.how == SWAPPED:
            yield _finding(verdict, incident.decided_by(incident.choice))
    for found in hash_orders(verdict):
        yield _by_hash(found)


def _of_threads(verdict: Verdict, incident: Incident, one: Call, other: Call) -> Finding:
    """`one` was not over when another thread of its rank issued `other`."""
    in_thread, beside = (other, one) if _is_of_thread(verdict, other) else (one, other)
    standing = by_site(verdict, [call for wait in incident.waiting for call in wait.calls])
    rows = standing if incident.divergence is None else of_variants(verdict, incident)
    return Finding(
        title=f"call {in_thread.op.word} in a thread and {beside.op.word} in another on one group: nothing orders the two",
        ranks=incident.ranks,
        confidence=incident.likely,
        stalls=incident.stalls,
        place=in_thread.site,
        places=(
            Place(in_thread.site, (one.rank,), f"{full(in_thread)}, in a thread"),
            Place(beside.site, (one.rank,), f"{full(beside)}, in another thread at the same time"),
            *(row for row in rows if row.site not in (in_thread.site, beside.site)),
        ),
        evidence={"group": one.group, "sequence_number": one.number, "first": full(one), "meanwhile": full(other)},
        why=f"on {named((one.rank,))} {short(other)} began before {short(one)} was over; which thread comes first is up to each "
        "rank's scheduler, so the ranks pair different calls",
        prescriptions=(
            Prescription(
                "group-for-the-thread",
                change=f"make a group for the thread on every rank, and pass it as `group=` at {at(in_thread.site)}",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _of_seen_threads(crossed: CrossedThreads, ranks: tuple[int, ...]) -> Finding:
    """The same, seen from outside: nobody knows which rank came first with which of them."""
    main, beside = crossed.main, crossed.thread
    return Finding(
        title=f"wait in {beside.call} in a thread and in {main.call} in the main one: nothing orders the two",
        ranks=ranks,
        confidence=LIKELY if crossed.one_group else POSSIBLE,
        place=beside.site,
        places=(
            Place(beside.site, (main.rank,), f"{beside.words}, in thread {crossed.name}"),
            Place(main.site, (main.rank,), f"{main.words}, in the main thread"),
        ),
        evidence={"in a thread": f"{beside.call} at {line_of(beside)}", "meanwhile": f"{main.call} at {line_of(main)}"},
        why="which thread comes first is up to each rank's scheduler, so the ranks pair different calls"
        + ("" if crossed.one_group else "; whether both are of one group the stacks do not show"),
        prescriptions=(
            Prescription(
                "group-for-the-thread",
                change=f"make a group for the thread on every rank, and pass it as `group=` at {line_of(beside)}",
            ),
        ),
        explains=(KEY,),
    )


def _is_of_thread(verdict: Verdict, call: Call) -> bool:
    """Whether a call was issued by a thread that is not the rank's main one."""
    log = verdict.timeline(call.rank).log
    rows = log.calls[log.calls["seq"] == call.seq]
    return bool(len(rows)) and bool(rows[0]["thread"])


def _by_hash(found: HashOrder) -> Finding:
    call, loop = found.call, found.loop
    return Finding(
        title=f"call {call.op.word} {found.passed} times in the order of the set `{shorten(loop.text, 60, placeholder='...')}`, "
        "which each process goes through in an order of its own",
        ranks=found.ranks,
        confidence=POSSIBLE if loop.size == 2 else LIKELY,
        stalls=Stalls.NO,
        place=call.site,
        places=(
            Place(call.site, found.ranks, f"{call.op.word} {call.shape}"),
            Place(loop.loop, found.ranks, "goes through the set"),
            Place(loop.made, found.ranks, "makes the set"),
        ),
        evidence={"passed": found.passed, "set": loop.text, "elements": loop.size or "not known", "hangs": False},
        why="Python hashes texts differently in each of these processes, so their sets have different orders; all calls of the "
        "line are alike, so nothing hangs: each result mixes different tensors",
        prescriptions=(
            Prescription(
                "same-order",
                change=f"go through sorted({loop.text}) at {at(loop.loop)}",
                edits=loop.edits,
            ),
        ),
    )


def _apart_by_hash(verdict: Verdict, incident: Incident, order: HashOrder) -> Finding:
    """Ranks that are at different elements of a set: the sizes or the roots do not fit."""
    parted, loop = incident.divergence, order.loop
    assert parted is not None
    text = shorten(loop.text, 60, placeholder="...")
    return Finding(
        title=f"call {short(order.call)}{group_words(incident)} for different elements of the set `{text}`, which each process "
        "goes through in an order of its own",
        ranks=order.ranks,
        confidence=LIKELY,
        stalls=incident.stalls,
        place=loop.loop,
        places=(
            Place(loop.loop, order.ranks, "goes through the set"),
            Place(loop.made, order.ranks, "makes the set"),
            *of_variants(verdict, incident),
        ),
        evidence={
            "set": loop.text,
            "sequence_number": parted.number,
            "calls": [full(variant.call) for variant in parted.variants],
            "hangs": True,
        },
        why="Python hashes texts differently in each of these processes, so their sets have different orders; "
        + "; ".join(f"{named(variant.ranks)}: {full(variant.call)}" for variant in parted.variants[:4]),
        prescriptions=(
            Prescription(
                "same-order",
                change=f"go through sorted({loop.text}) at {at(loop.loop)}",
                edits=loop.edits if agrees_without(parted.group, order.call.site) else (),
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _apart_by_keys(verdict: Verdict, incident: Incident, order: HashOrder) -> Finding:
    """Ranks that are at different keys of a dict: the sizes do not fit."""
    parted, loop = incident.divergence, order.loop
    assert parted is not None
    return Finding(
        title=f"call {short(order.call)}{group_words(incident)} for different keys of the dict "
        f"`{shorten(loop.text, 60, placeholder='...')}`, which each rank has filled in the order of its own data",
        ranks=order.ranks,
        confidence=LIKELY,
        stalls=incident.stalls,
        place=loop.loop,
        places=(
            Place(loop.loop, order.ranks, "goes through the dict"),
            Place(loop.made, order.ranks, "puts in what is met first"),
            *of_variants(verdict, incident),
        ),
        evidence={
            "dict": loop.text,
            "sequence_number": parted.number,
            "calls": [full(variant.call) for variant in parted.variants],
            "hangs": True,
        },
        why="a dict keeps the order in which its keys came; "
        + "; ".join(f"{named(variant.ranks)}: {full(variant.call)}" for variant in parted.variants[:4]),
        prescriptions=(
            Prescription(
                "same-order",
                change=f"give `{loop.text}` all of its keys in one order on every rank before {at(loop.made)}, or go through the "
                "sorted keys of all ranks",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    odd, usual = incident.odd, incident.usual
    assert odd is not None
    assert usual is not None
    unnoticed = incident.divergence is None
    mine, theirs = _names(incident, odd, usual)
    number = f"{short(odd)}{group_words(incident)}"
    if unnoticed:
        why = f"both move the same number of bytes as {number}, so nothing hangs: each result mixes different tensors"
    else:
        why = f"as {number} the one call meets the other, and the two do not fit together"
    note = condition(incident)
    return Finding(
        title=_title(incident, mine, theirs),
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=odd.site,
        places=tuple(by_site(verdict, [usual, odd])) if unnoticed else of_variants(verdict, incident),
        evidence={
            "group": incident.group.name if incident.group else "",
            "sequence_number": usual.number,
            "expected": full(usual),
            "issued": full(odd),
            "hangs": not unnoticed,
        }
        | tipped(incident),
        why=f"{why}; {note}" if note else why,
        prescriptions=(
            Prescription(
                "same-order",
                change=f"call {theirs} before {mine} on every rank (in order of sorted names, not of arrival)",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        undecided=incident.undecided,
    )


def _title(incident: Incident, mine: str, theirs: str) -> str:
    if not incident.is_tie:
        return f"calls {mine} before {theirs}; the others do the opposite"
    assert incident.odd is not None
    variants = incident.divergence.variants if incident.divergence is not None else ()
    side = next((one.ranks for one in variants if incident.odd.rank in one.ranks), (incident.odd.rank,))
    do = "calls" if len(side) == 1 else "call"
    return f"disagree on the order of two calls: {named(side)} {do} {mine} before {theirs}, the others do the opposite"


def _names(incident: Incident, odd: Call, usual: Call) -> tuple[str, str]:
    """How to tell the two calls apart: as they are written, by their lines, on one line by their sizes."""
    if incident.called is not None:
        of_odd, of_usual = (shorten(call, 60, placeholder="...") for call in incident.called)
        return f"`{of_odd}` at {at(odd.site)}", f"`{of_usual}` at {at(usual.site)}"
    if odd.site != usual.site:
        return f"{odd.op.word} at {at(odd.site)}", f"{usual.op.word} at {at(usual.site)}"
    return f"the {odd.op.word} of {odd.shape}", f"the {usual.op.word} of {usual.shape}"


def sick() -> Recording:
    script = recording(ranks=4)
    for step in range(4):
        script.collective("all_reduce", [32], asynchronous=True, site="train.py:41 sync")
        script.collective("all_reduce", [64], asynchronous=True, site="train.py:42 sync")
        if step == 2:
            script.swapped_by(1)
        script.wait().step()
    return script.live()


def healthy() -> Recording:
    """Rank 0 calls the same things from lines of its own."""
    script = recording(ranks=4)
    for _ in range(4):
        script.collective("all_reduce", [32], site="train.py:41 sync").instead(0, site="train.py:51 sync_main")
        script.collective("all_reduce", [32], site="train.py:42 sync").instead(0, site="train.py:50 sync_main")
        script.step()
    return script.live()
