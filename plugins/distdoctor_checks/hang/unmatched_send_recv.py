"""
DD113 unmatched-send-recv: a send or receive has no matching call on its peer, or the two do not fit.

What it means    Point-to-point needs both ends: the same group, each other as peers, the same tag, size and dtype.
Why it hurts     The receiver waits forever. On gloo, a send larger than its receive aborts the receiver; a smaller one leaves
                 the rest of the tensor unchanged.
How we know      Sends and receives are counted per group, sender, receiver and tag. The sender has ended, or itself waits for
                 something that needs the receiver, so the send can no longer come; or the n-th send and the n-th receive of a
                 pair differ in size (likely, where the send is the smaller one); or every rank ended in order and a receive
                 was never posted (likely). Where a rank sends (or receives) fewer messages than in the rounds before, the
                 other end is named if most of those that pass messages on have changed their round too, and both if there are
                 no others (likely).
What to do       Pair every send with a recv of the same group, tag and size, with each other as peers.
When it is fine  isend and irecv that are waited for later, batch_isend_irecv, sends in flight (they may be buffered), one last
                 send of a loop that nobody needs any more, and messages whose size was sent before them, as integers, into a
                 buffer for the largest one.
Source           torch.distributed.send, recv: gloo matches by tag, NCCL by order alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.ending import LEFT
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.apart import RanksApart
from distdoctor.diagnosis.hang.live.rank_activity import RankActivity
from distdoctor.diagnosis.hang.live.sides import Sides
from distdoctor.diagnosis.hang.live.stack_waits import line_of
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at, by_site, deciding_places, full, pairwise, short
from distdoctor.recording.recording import Call, Recording
from distdoctor.recording.trace.layout import Op
from distdoctor.testing import recording

_COUNTED = ": work the number out in one way for both"


@check(
    "DD113",
    "unmatched-send-recv",
    severity=ERROR,
    family="hang",
    formerly=("DD126 ranks-apart",),
    stalls=Stalls.FOREVER,
    specificity=10,
)
def examine(verdict: Verdict | None, apart: RanksApart | None) -> Iterator[Finding]:
    if apart is not None and apart.sides is not None and apart.sides.in_pairs:
        yield apart.sides.finding("pair-send-with-recv", _change_by_stacks(apart.sides))
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.UNSENT):
        yield _one_too_few(verdict, incident)
    for incident in verdict.of_kind(IncidentKind.UNRECEIVED):
        yield _lost(verdict, incident)
    for incident in _unmatched(verdict):
        yield _misfit(verdict, incident) if incident.pair else _finding(verdict, incident)


def _change_by_stacks(sides: Sides) -> str:
    """What to do about a send or a receive that the stacks show."""
    one, other = sides.odd[0], sides.usual[0]
    if other.op in (Op.SEND, Op.RECV):
        return f"give {_end(other)} and {_end(one)} the same tag, group and size"
    end = "recv" if one.op is Op.SEND else "send"
    return f"give the {one.call} of {line_of(one)}{one.peer} its {end} on the other rank, or take it out"


def _end(standing: RankActivity) -> str:
    """`the send of train.py:7 (tag 3)`: one end of a message."""
    tag = standing.arguments.get("tag", "")
    return f"the {standing.call} of {line_of(standing)}" + (f" (tag {tag})" if tag.isdigit() else "")


def _unmatched(verdict: Verdict) -> Iterator[Incident]:
    """Receives of another size than their send, that have no send, or that stand in a ring with something else."""
    yield from verdict.of_kind(IncidentKind.MISFITTED)
    for incident in verdict.of_kind(IncidentKind.LEFT):
        receive, gone = incident.usual, incident.ranks[0]
        if incident.group is None and receive is not None and _was_never_sent(verdict, gone, receive):
            yield replace(incident, ranks=(receive.rank, gone))
    for incident in verdict.of_kind(IncidentKind.RING):
        if incident.in_pairs:
            mistagged = verdict.mistagged(incident)
            if mistagged is not None:
                yield replace(incident, ranks=(mistagged[0].rank, mistagged[1].rank), usual=mistagged[0])
                continue
            pair = next((wait for wait in incident.in_pairs if wait.call.op is not Op.SEND), incident.in_pairs[0])
            yield replace(incident, ranks=(pair.call.rank, *pair.on), usual=pair.call)


def _was_never_sent(verdict: Verdict, gone: int, receive: Call) -> bool:
    """Whether the rank that left sent nothing to the receiver at all, or with another tag what nobody received."""
    if not any(lane[1:] == (gone, receive.rank) for lane in verdict.pairs.sends):
        return True
    unpaired = (call for call in verdict.unpaired(receive) if call.op is Op.SEND and call.rank == gone)
    return any(call.root == receive.rank and call.tag != receive.tag for call in unpaired)


def _misfit(verdict: Verdict, incident: Incident) -> Finding:
    assert incident.pair is not None
    sent, got = incident.pair
    return Finding(
        title=f"{pairwise(got)} expects {got.nbytes} bytes {got.dtype}, but the send has {sent.nbytes} bytes {sent.dtype}",
        ranks=incident.ranks,
        confidence=CERTAIN
        if sent.nbytes > got.nbytes
        else LIKELY,  # a smaller one may come into a buffer that is meant for it
        place=got.site,
        places=(*by_site(verdict, [sent, got]), *deciding_places(incident)),
        evidence={"sent": full(sent), "received": full(got), "sent_bytes": sent.nbytes, "received_bytes": got.nbytes},
        why="a receive must be as large as its send: a larger send aborts it on gloo, a smaller one leaves the rest unset",
        prescriptions=(
            Prescription(
                "pair-send-with-recv",
                change=f"give {at(sent.site)} and {at(got.site)} tensors of the same shape and dtype",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        undecided=incident.undecided,
    )


def _one_too_few(verdict: Verdict, incident: Incident) -> Finding:
    """A rank went on after fewer messages than the other side receives, or sends: rings of one line and another that went well
    before. It is the fault of who waits where most others have changed their round as the other one has, and anybody's where
    there are none."""
    waits, last, instead = incident.usual, incident.left_out, incident.odd
    assert waits is not None
    assert last is not None
    assert instead is not None
    expects_more = waits.rank in incident.ranks and not incident.is_tie
    does, did, other = ("sends", "sent", "receives") if last.op is Op.SEND else ("receives", "received", "sends")
    went_on = f"rank {last.rank} went on to {at(instead.site)}, where in the rounds before it always {did} once more"
    went_on += f" at {at(last.site)}"
    lasts = Place(last.site, (last.rank,), f"{pairwise(last)} was its last one")
    waiting = by_site(verdict, [waits])
    change = f"{does[:-1]} as often at {at(last.site)} as rank {waits.rank} {other} at {at(waits.site)}{_COUNTED}"
    if incident.decision is not None and incident.decision.handles_errors:
        change = (
            f"{does[:-1]} in `{incident.decision.test}` ({at(incident.decision.site)}) as well, or let the error out: "
        )
        change += f"rank {waits.rank} {other} also for what has failed"
    why = f"{went_on}; rank {waits.rank} still {other}"
    if expects_more:
        title = f"rank {waits.rank} {other} one message more than rank {last.rank} {does}: {short(waits)} waits for it"
        why = f"{went_on}, and the others left their round as it did; rank {waits.rank} still {other}"
        change = f"{other[:-1]} as often at {at(waits.site)} as rank {last.rank} {does} at {at(last.site)}{_COUNTED}"
    elif incident.is_tie:
        title = f"rank {last.rank} {does} one message fewer than rank {waits.rank} {other}: {short(waits)} waits for it"
    else:
        title = f"rank {last.rank} {does} one message too few: {short(waits)} waits for it"
    return Finding(
        title=title,
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=waits.site if expects_more else last.site,
        places=(
            *((*waiting, lasts) if expects_more else (lasts, *waiting)),
            *by_site(verdict, [instead]),
            *deciding_places(incident),
        ),
        evidence={"waits": full(waits), "instead": full(instead), "last": full(last), "number": last.number},
        why=why,
        prescriptions=(Prescription("pair-send-with-recv", change=change),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        undecided=incident.is_tie,
    )


def _lost(verdict: Verdict, incident: Incident) -> Finding:
    sent = incident.odd
    assert sent is not None
    waits = [
        call for call in verdict.pairs.receives.get((sent.group, sent.rank, sent.root), []) if call.tag != sent.tag
    ]
    many = f"{incident.lost_sends} messages" if incident.lost_sends > 1 else "a message"
    return Finding(
        title=f"rank {sent.rank} sent {many} to rank {sent.root} that it never received, beginning with {pairwise(sent)}",
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=Stalls.NO,
        place=sent.site,
        places=(*by_site(verdict, [sent, *waits[-1:]]), *deciding_places(incident)),
        evidence={
            "sent": full(sent),
            "lost": incident.lost_sends,
            "received_with": sorted({call.tag for call in waits}),
        },
        why=f"rank {sent.root} ended in order and had posted no receive for it"
        + (f"; it received with tag {waits[-1].tag} instead of {sent.tag}" if waits else ""),
        prescriptions=(
            Prescription(
                "pair-send-with-recv",
                change=f"receive on rank {sent.root} what {at(sent.site)} sends, with the same group and tag",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    receive = incident.usual
    assert receive is not None
    sender, unpaired = receive.root, verdict.unpaired(receive)
    places = [*by_site(verdict, [receive]), *by_site(verdict, [call for call in unpaired if call.rank == sender])]
    doing = _doing(verdict, incident, sender)
    if doing is not None and not unpaired:
        places.append(doing)
    return Finding(
        title=f"{short(receive)} waits for a {'receive' if receive.op is Op.SEND else 'send'} that never comes",
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=receive.site,
        places=(*places, *deciding_places(incident)),
        evidence={"waits": full(receive), "for_rank": sender, "unpaired": [full(call) for call in unpaired]},
        why=_why(verdict, unpaired, receive),
        prescriptions=(Prescription("pair-send-with-recv", change=_change(unpaired, receive)),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        undecided=incident.undecided,
    )


def _doing(verdict: Verdict, incident: Incident, sender: int) -> Place | None:
    for wait in incident.waiting:
        for call in wait.calls:
            if call.rank == sender:
                return by_site(verdict, [call])[0]
    timeline = verdict.facts.timelines.get(sender)
    return Place(timeline.last_site, (sender,), "last seen here") if timeline and timeline.last_site else None


def _why(verdict: Verdict, unpaired: tuple[Call, ...], receive: Call) -> str:
    ending = verdict.endings.get(receive.root)
    if receive.op is Op.RECV_ANY:
        words = [f"none of the members can still send to rank {receive.rank}"]
    elif ending is not None and ending.how == LEFT:
        words = [f"rank {receive.root} exited normally and never sent to rank {receive.rank} with tag {receive.tag}"]
    else:
        words = [f"rank {receive.root} itself waits for something that needs rank {receive.rank}"]
    for call in unpaired:
        if call.op is Op.SEND and call.rank == receive.root:
            if call.root != receive.rank:
                words.append(f"it sent to rank {call.root} instead, which has not received it")
            elif call.tag != receive.tag:
                words.append(f"it sent with tag {call.tag}, but the receive expects tag {receive.tag}")
            break
    return "; ".join(words)


def _change(unpaired: tuple[Call, ...], receive: Call) -> str:
    for call in unpaired:
        if call.op is Op.SEND and call.rank == receive.root and call.root == receive.rank and call.tag != receive.tag:
            return f"use the same tag at {at(call.site)} and {at(receive.site)}: tag={call.tag}"
        if call.op is Op.SEND and call.rank == receive.root and call.root != receive.rank:
            return f"send to dst={receive.rank} at {at(call.site)}, or receive on rank {call.root}"
    if receive.root < 0:
        return f"receive at {at(receive.site)} only as often as the others send, or have one of them send once more"
    verb, way = ("receive on", "from") if receive.op is Op.SEND else ("send from", "to")
    return f"{verb} rank {receive.root} {way} rank {receive.rank} before anything that waits for rank {receive.rank}"


def sick() -> Recording:
    script = recording(ranks=2)
    script.collective("all_reduce", [8], site="train.py:20 main").step()
    script.send(0, 1, [8], tag=1, site="train.py:41 exchange").recv(1, 0, [8], tag=2, site="train.py:43 exchange")
    return script.collective("barrier", site="train.py:50 main").live()


def healthy() -> Recording:
    """A pipeline whose last stage is slow, and receives that were posted long before their sends."""
    script = recording(ranks=3)
    for _ in range(3):
        script.recv(1, 0, [8], asynchronous=True, site="train.py:40 stage").send(0, 1, [8], site="train.py:41 stage")
        script.wait(1).send(1, 2, [8], site="train.py:43 stage").recv(2, 1, [8], site="train.py:44 stage")
        script.step()
    return script.recv(2, 1, [8], site="train.py:44 stage").stays([0, 1]).live(silent_for=3)
