"""How a hang is put into words: calls, waits, conditions, places. Shared by the checks of the DD1xx family."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from distdoctor.diagnosis.finding import CERTAIN, Finding, Place, Prescription
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.diagnosis.source.rank_guard import LEAVES, Guard
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, SourceLine
from distdoctor.recording.trace.layout import POINT_TO_POINT, ROOTED, Op, ReduceOp


def full(call: Call) -> str:
    """`all_reduce #128 [25600] float32 sum`, with what distinguishes this operation."""
    parts = [call.words, call.shape, call.dtype]
    if call.reduce_op not in (ReduceOp.NONE, ReduceOp.UNSEEN):
        parts.append(call.reduce_op.name.lower())
    if call.op in ROOTED and call.root >= 0:
        parts.append(f"root {call.root}")
    if call.op in POINT_TO_POINT:
        parts[0] = pairwise(call)
    return " ".join(part for part in parts if part)


def pairwise(call: Call) -> str:
    """`send #3 to rank 1`, `recv #3 from rank 0 tag 7`."""
    where = "" if call.op is Op.RECV_ANY else f" {'to' if call.op is Op.SEND else 'from'} rank {call.root}"
    tag = f" tag {call.tag}" if call.tag else ""
    return f"{call.op.word} #{call.number}{where}{tag}"


def short(call: Call) -> str:
    """`all_reduce #128`, `recv #3 from rank 0`."""
    return pairwise(call) if call.op in POINT_TO_POINT else call.words


def told_apart(one: Call, other: Call) -> tuple[str, str]:
    """Both in short; with their lines, else with their sizes, where the same words would stand for two calls."""
    if short(one) != short(other):
        return short(one), short(other)
    if one.site and other.site and one.site != other.site:
        return f"{short(one)} ({at(one.site)})", f"{short(other)} ({at(other.site)})"
    return full(one), full(other)


def seconds(value: float) -> str:
    """`12 s`, `0.4 s`, `3 min`."""
    if value >= 600:
        return f"{value / 60:.0f} min"
    return f"{value:.0f} s" if value >= 2 else f"{value:.1f} s"


def at(site: SourceLine) -> str:
    """`train.py:41`: the line as prose mentions it."""
    return site.short if site else "an unknown line"


def wait(ranks: Collection[int]) -> str:
    """`rank 1 waits`, `ranks 0-2 wait`."""
    return f"{named(ranks)} {'waits' if len(set(ranks)) == 1 else 'wait'}"


def have_waited(ranks: Collection[int]) -> str:
    """`rank 1 has waited`, `ranks 0-2 have waited`."""
    return f"{named(ranks)} {'has' if len(set(ranks)) == 1 else 'have'} waited"


def waiting(verdict: Verdict, calls: Iterable[Call]) -> str:
    """`, waiting 12 s` when somebody is seen to wait."""
    longest = max((verdict.waiting_seconds(call) for call in calls), default=0.0)
    return f", waiting {seconds(longest)}" if longest >= 1 else ""


def by_site(verdict: Verdict, calls: Iterable[Call], role: str = "") -> list[Place]:
    """One place per line and call: `ranks 0-2  train.py:41  all_reduce #128 [25600] float32, waiting 12 s`."""
    together: dict[tuple[SourceLine, str], list[Call]] = {}
    for call in calls:
        together.setdefault((call.site, full(call)), []).append(call)
    return [
        Place(site, tuple(sorted(c.rank for c in found)), (role or words) + waiting(verdict, found))
        for (site, words), found in sorted(together.items(), key=lambda item: (-len(item[1]), item[1][0].rank))
    ]


MOST_CALLERS = 3  # lines that are shown beside the two calls of an incident


def of_variants(verdict: Verdict, incident: Incident) -> tuple[Place, ...]:
    """The rows of a group that diverges: who issued what, where, the odd ones last; and the condition that they are under."""
    assert incident.divergence is not None
    calls = [call for variant in incident.divergence.variants for call in variant.calls]
    odd = set(incident.ranks) if not incident.is_tie else set()
    usual = [call for call in calls if call.rank not in odd]
    strange = by_site(verdict, [call for call in calls if call.rank in odd])
    decides = deciding_places(incident)
    under = _guard_place(incident) if incident.odd is not None and strange else ()
    rows = (*by_site(verdict, usual), *strange, *decides)
    return rows if any(one.site == row.site for row in rows for one in under) else (*rows, *under)


def _guard_place(incident: Incident) -> tuple[Place, ...]:
    """The row of the condition that is around the odd call, or leaves before it."""
    guard = incident.guard
    if guard is None or not incident.guard_at.line:
        return ()
    word = guard.test if guard.test.startswith("@") else f"if {guard.test}:"
    how = "leaves before it" if guard.how == LEAVES else "is in its else branch" if guard.negated else "is inside"
    return (Place(incident.guard_at, incident.ranks, f"{how}: `{word}`"),)


def deciding_places(incident: Incident) -> tuple[Place, ...]:
    """The rows of what made the ranks diverge, as far as the source tells: the condition, and what it depends on."""
    calls = {call.site for call in (incident.odd, incident.usual) if call is not None}
    rows = decision_places(incident.decision, calls)
    shown = {row.site for row in rows} | calls
    led = [site for site in dict.fromkeys(incident.callers) if site not in shown]
    return (*rows, *(Place(site, (), "led there") for site in led[:MOST_CALLERS]))


def decision_places(decision: Decision | None, calls: Collection[SourceLine]) -> tuple[Place, ...]:
    """The same for ranks that are in `calls`, whatever the grade of evidence."""
    if decision is None:
        return ()
    first = (Place(decision.site, (), f"decides: `{decision.test}`"),) if decision.site not in calls else ()
    call = (Place(decision.call, (), "leads there"),) if decision.call and decision.call not in calls else ()
    named = [
        (decision.exit, "leads away: "),
        *((one, "which depends on ") for one in decision.way),
        (decision.also, "or on "),
    ]
    rest = (Place(one[0], (), f"{word}`{one[1]}`") for one, word in named if one is not None and one[0] not in calls)
    return (*first, *call, *rest)


def decided_words(incident: Incident) -> str:
    """`most likely they diverged at ...`, with the condition; "" when that is said already, or unknown."""
    decision = incident.decision
    if decision is None or (incident.guard is not None and decision.site.line == incident.guard.line):
        return ""
    return f"most likely they diverged at {decision.words}"


def condition(incident: Incident) -> str:
    """``inside `if loss < best:` (line 56)``, or how the ranks got past the call; "" when no condition is known."""
    guard = incident.guard
    if guard is None:
        return ""
    if guard.how == LEAVES:
        return f"line {guard.line} exits before it: `if {guard.test}:`"
    word = guard.test if guard.test.startswith("@") else f"if {guard.test}:"
    branch = "in the else branch of" if guard.negated else "inside"
    return f"{branch} `{word}` (line {guard.line})"


def group_words(incident: Incident, call: Call | None = None) -> str:
    """` of group tp (ranks 0-3)`; "" for the default group, and for a call of another group than the incident's."""
    other = call is not None and incident.group is not None and call.group != incident.group.name
    if incident.group is None or other or incident.group.words == "the default group":
        return ""
    return f" of {incident.group.words}"


def counts(verdict: Verdict, ranks: Iterable[int]) -> str:
    """`rank 1 did 3 steps, the others 5`."""
    steps = {rank: timeline.steps for rank, timeline in verdict.facts.timelines.items()}
    mine = {rank: steps[rank] for rank in ranks if rank in steps}
    rest = sorted({count for rank, count in steps.items() if rank not in mine})
    if not mine or not rest or set(mine.values()) == set(rest):
        return ""
    others = str(rest[0]) if len(rest) == 1 else f"{rest[0]} to {rest[-1]}"
    return f"{named(mine)} did {', '.join(str(c) for c in sorted(set(mine.values())))} optimizer steps, the others {others}"


def tipped(incident: Incident, *words: str) -> dict[str, object]:
    """Evidence: the names in the user's source without which the verdict would be another one; nothing where there are none."""
    names = dict.fromkeys(word for word in (*words, incident.hint) if word)
    return {"tipped_by": list(names)} if names else {}


def test_of(guard: Guard) -> str:
    """The condition as it stands in the source."""
    return guard.test if guard.test.startswith("@") else f"if {guard.test}:"


def table(values: Mapping[str, Iterable[int]]) -> str:
    """`[64, 3] on ranks 0-2; [32, 3] on rank 3`."""
    return "; ".join(f"{value} on {named(ranks)}" for value, ranks in values.items())


def from_exception(incident: Incident, title: str, cure: Prescription, *, whose: str) -> Finding:
    """What ranks died of, where the exception itself names the illness: it is a proof, in the words of `whose` ("torch's")."""
    ending = incident.ending
    assert ending is not None
    return Finding(
        title=title,
        ranks=incident.ranks,
        confidence=CERTAIN,
        stalls=incident.stalls,
        place=ending.site,
        places=(Place(ending.site, incident.ranks, f"raised {ending.kind}"),) if ending.site else (),
        evidence={"exception": ending.words, "traceback": ending.traceback},
        why=f"{whose} own words: {' '.join(ending.words.split())[:160]}",
        prescriptions=(cure,),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )
