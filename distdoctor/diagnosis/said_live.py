"""What was said of a job while it ran: kept as values, and put in front of what its recording says after its end.

The end of a job wipes out what some findings were read from: processes, connections, records that were overwritten. Whoever reads
the report later reads what was said when it could be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import CERTAIN, ERROR, NOTE, Confidence, Finding, Stalls
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.recording.recording import Recording


@dataclass(frozen=True)
class SaidLive:
    """`told`: what records proved, whatever the rings have forgotten since. `stood`: what the ranks waited for at the end, or at
    the last look, and what the hang was; `leads`: that was the end of the job, so it comes first whatever else is found.
    `withdrawn`: said, and taken back after so many seconds. `hung`: the job was found to hang. `examined`: the checks that the
    look with stacks had asked."""

    told: tuple[Finding, ...] = ()
    stood: tuple[Finding, ...] = ()
    leads: bool = False
    hung: bool = False
    ended_by_distdoctor: bool = False
    withdrawn: tuple[tuple[Finding, float], ...] = ()
    examined: tuple[str, ...] = ()
    remedies: Mapping[str, Remedy] = field(default_factory=dict)

    def as_values(self) -> dict[str, Any]:
        """As plain values, for `SeenLive.said`."""
        values: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_plain, str_keys=True)
        return values

    @classmethod
    def of(cls, recording: Recording) -> SaidLive | None:
        """What all observers of a recording said, put together; None where nobody said a word that can be read.

        What somebody outside saw of a job that then ended well was refuted by that end; where nobody saw an end, by the calls and
        steps that its ranks made later.
        """
        code = recording.job.exit_code
        given = [(one, seen.wall_ns) for seen in recording.seen_live if (one := said_in(seen.said)) is not None]
        if not given:
            return None
        accounts = [
            one if code else one._without(one.stood if code == 0 else _went_on(one.stood, recording, wall_ns))
            for one, wall_ns in given
        ]
        return cls(
            told=_distinct(finding for one in accounts for finding in one.told),
            stood=_distinct(finding for one in accounts for finding in one.stood),
            leads=any(one.leads for one in accounts),
            hung=any(one.hung for one in accounts),
            ended_by_distdoctor=any(one.ended_by_distdoctor for one in accounts),
            withdrawn=tuple(pair for one in accounts for pair in one.withdrawn),
            examined=tuple(sorted({code for one in accounts for code in one.examined})),
            remedies={slug: remedy for one in accounts for slug, remedy in one.remedies.items()},
        )

    def _without(self, refuted: tuple[Finding, ...]) -> SaidLive:
        """The same where those did not stand in the end."""
        stood = tuple(finding for finding in self.stood if finding not in refuted)
        return replace(self, stood=stood) if stood else replace(self, stood=(), leads=False, hung=False)


def _went_on(stood: Iterable[Finding], recording: Recording, wall_ns: int) -> tuple[Finding, ...]:
    """What may only have been a wait, and whose ranks called or stepped after the look at their processes. Without such a look
    the recording itself tells all that there was."""
    moved = {
        rank
        for rank, log in recording.ranks.items()
        for rows, name in ((log.calls, "entered_ns"), (log.steps, "at_ns"))
        if len(rows) and int(rows[-1][name]) + log.monotonic_to_wall_ns > wall_ns
    }
    maybe = (finding for finding in stood if finding.stalls is Stalls.MAYBE)
    return tuple(finding for finding in maybe if not wall_ns or moved & set(finding.ranks))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def said_in(values: Mapping[str, Any]) -> SaidLive | None:
    """What one observer said, from `SeenLive.said`; None where that cannot be read."""
    try:
        return msgspec.convert(dict(values), SaidLive, str_keys=True) if values else None
    except msgspec.ValidationError:
        return None


def _distinct(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    found: dict[tuple[str, tuple[int, ...]], Finding] = {}
    for finding in findings:
        found.setdefault((finding.code, finding.ranks), finding)
    return tuple(found.values())


def with_what_was_said(diagnosis: Diagnosis, said: SaidLive, checks: Mapping[str, Check]) -> Diagnosis:
    """The diagnosis of a recording with what was said while the job ran. Each event has one name, and is told once."""
    found = with_what_was_told(diagnosis, said.told, checks)
    if said.leads or not found.at_least(ERROR):
        found = with_what_stood(found, said.stood, checks)
    kept = _without_notes_on_the_same(found.findings, checks)
    named = {finding.code for finding in kept}
    examined = {*found.examined, *named, *(said.examined if said.leads else ())}
    return replace(
        found,
        findings=kept,
        remedies={**said.remedies, **found.remedies},
        examined=tuple(sorted(examined)),
        not_examined=tuple(one for one in found.not_examined if one.code not in examined),
        withdrawn=(*said.withdrawn, *_refuted(said.told, diagnosis, checks)),
        hung=said.hung,
        ended_by_distdoctor=said.ended_by_distdoctor,
    )


def with_what_was_told(diagnosis: Diagnosis, told: Iterable[Finding], checks: Mapping[str, Check]) -> Diagnosis:
    """The diagnosis after the end with every finding that was certain while the job ran, whatever the rings have forgotten since.

    One event has one code: where the end gave an error of the same family its name, the name of the time before is dropped. That
    replicas part may be taken back: what the program brings together again later is no divergence. The end refutes it where the
    same check has seen all that there was.
    """
    told = tuple(told)
    decided = tuple(next((one for one in told if _decides(one, f)), f) for f in diagnosis.findings)
    diagnosis = replace(diagnosis, findings=decided)
    found = (*diagnosis.findings, *diagnosis.suppressed)
    named = {checks[f.code].family for f in diagnosis.at_least(ERROR) if f.code in checks} - {""}
    kept = tuple(
        finding
        for finding in told
        if not any(_is_the_same(finding, one) for one in found)
        and (finding.code not in checks or checks[finding.code].family not in named)
        and not _is_refuted(finding, diagnosis, checks)
    )
    gravest_first = sorted((*kept, *diagnosis.findings), key=lambda one: -(one.severity or 0))  # a note leads nothing
    return replace(diagnosis, findings=tuple(gravest_first)) if kept else diagnosis


def _decides(told: Finding, found: Finding) -> bool:
    """Whether it was told which of the ranks that part in a step is the odd one, which what is left (a bundle) does not tell."""
    step = told.evidence.get("agreed_until_step")
    same = told.code == found.code and step is not None and step == found.evidence.get("agreed_until_step")
    return same and told.confidence == CERTAIN and not told.undecided and set(told.ranks) < set(found.ranks)


def _is_the_same(told: Finding, found: Finding) -> bool:
    """Whether the end has found what was told: of the same ranks, or of more of them at the same place, who came to it later."""
    more = set(told.ranks) <= set(found.ranks) and told.place == found.place
    return told.code == found.code and (told.ranks == found.ranks or more)


def _refuted(
    told: Iterable[Finding], diagnosis: Diagnosis, checks: Mapping[str, Check]
) -> tuple[tuple[Finding, float], ...]:
    """What the end refutes, with the seconds between the two."""
    logs = diagnosis.recording.ranks.values() if diagnosis.recording is not None else ()
    last = max((int(log.steps["at_ns"][-1]) + log.monotonic_to_wall_ns for log in logs if len(log.steps)), default=0)
    return tuple(
        (finding, max(0, last - finding.at_ns) / 1e9) for finding in told if _is_refuted(finding, diagnosis, checks)
    )


def _is_refuted(told: Finding, diagnosis: Diagnosis, checks: Mapping[str, Check]) -> bool:
    """Whether the check that said it has looked again at the end, at records of which none was overwritten, and nothing is said
    of the replicas any more, by whatever name."""
    recording, of_replicas = diagnosis.recording, {code for code, check in checks.items() if check.family == "replicas"}
    if told.code not in of_replicas or not diagnosis.is_whole:
        return False
    if any(one.code in of_replicas for one in (*diagnosis.findings, *diagnosis.suppressed)):
        return False
    idle = {one.code for one in diagnosis.not_examined if not one.applies}
    if recording is None or told.code not in {*diagnosis.examined, *idle}:
        return False
    logs = recording.ranks.values()
    looks = [rows for log in logs for name in ("updates", "digests") if len(rows := log.rows(name))]
    return bool(looks) and all(int(rows["seq"][0]) == 1 for rows in looks)


def with_what_stood(diagnosis: Diagnosis, stood: Iterable[Finding], checks: Mapping[str, Check]) -> Diagnosis:
    """The diagnosis after the end, led by findings that were true while the job ran and that its end has wiped out.

    A hang that distdoctor ended by SIGTERM looks, to some checks, like ranks that died. What hung in the backend keeps the words
    of the time when the connections could still be looked at. What is found again, and is no surer by now, keeps them too: who
    looked at the processes had more than their stacks, the lines of their sources and who held what they waited for. A guess
    from the end why the same ranks did not come (the others' timeout was short) is another way out, and no second finding.
    """
    stood = tuple(stood)
    in_words = {(finding.code, finding.ranks): finding for finding in stood}
    diagnosis = replace(
        diagnosis, findings=tuple(_surer(f, in_words.get((f.code, f.ranks), f)) for f in diagnosis.findings)
    )
    less = tuple(found for found in diagnosis.findings if any(_says_less(found, one, checks) for one in stood))
    if less:
        stood = tuple(_with_ways_out(one, less, checks) for one in stood)
        diagnosis = replace(diagnosis, findings=tuple(found for found in diagnosis.findings if found not in less))
    from_outside = {finding.code for finding in stood if finding.code in checks and checks[finding.code].outside}
    if from_outside:
        kept = tuple(finding for finding in diagnosis.findings if finding.code not in from_outside)
        diagnosis = replace(diagnosis, findings=kept)
    kept = tuple(finding for finding in diagnosis.findings if not _is_named_better(finding, stood))
    diagnosis = replace(diagnosis, findings=kept)
    known = (*diagnosis.findings, *diagnosis.suppressed)
    wiped = tuple(finding for finding in stood if not any(_is_the_same(finding, one) for one in known))
    return replace(diagnosis, findings=(*wiped, *diagnosis.findings)) if wiped else diagnosis


def _is_named_better(found: Finding, stood: Iterable[Finding]) -> bool:
    """Whether a more specific name was given to the same fact while it stood, as by a source that was edited since."""
    facts, own = set(found.explains), found.specificity or 0
    return any(facts & set(one.explains) and own < (one.specificity or 0) for one in stood)


def _says_less(found: Finding, stood: Finding, checks: Mapping[str, Check]) -> bool:
    """Whether the end only guesses at what was seen while it stood: the same ranks were late."""
    if found.code == stood.code or not {found.code, stood.code} <= checks.keys():
        return False
    order, family = list(Confidence), checks[found.code].family
    guessed = order.index(found.confidence) > order.index(stood.confidence)
    return (
        bool(family) and family == checks[stood.code].family and guessed and found.ranks in (stood.ranks, stood.delays)
    )


def _with_ways_out(stood: Finding, others: Iterable[Finding], checks: Mapping[str, Check]) -> Finding:
    """What only says that they were late (a symptom) has no way out of its own."""
    less = (found for found in others if _says_less(found, stood, checks) and not checks[found.code].symptom)
    further = (one for found in less for one in found.prescriptions)
    return replace(stood, prescriptions=(*stood.prescriptions, *further))


def _surer(found: Finding, stood: Finding) -> Finding:
    """What was said while it stood, unless the end has made it surer."""
    order = list(Confidence)
    return found if order.index(found.confidence) < order.index(stood.confidence) else stood


def _without_notes_on_the_same(findings: Iterable[Finding], checks: Mapping[str, Check]) -> tuple[Finding, ...]:
    """Without the notes that say less about an event than a graver finding of the same family on one of its ranks, or on any
    rank that waits for it."""
    findings = tuple(findings)
    graver = {
        checks[f.code].family: f for f in findings if f.code in checks and f.stalls and (f.severity or NOTE) > NOTE
    }
    graver.pop("", None)
    return tuple(
        f for f in findings if f.severity != NOTE or f.code not in checks or checks[f.code].family not in graver
    )
