"""Run checks over a recording, one by one. A check that crashes is *not examined*; the others go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from distdoctor.diagnosis.check import Check, NotApplicable, NotSeen, not_recorded
from distdoctor.diagnosis.diagnosis import CHECK_FAILED, Diagnosis, NotExamined
from distdoctor.diagnosis.facts.examined import Examined, names_of
from distdoctor.diagnosis.finding import (
    CERTAIN,
    ERROR,
    LIKELY,
    NOTE,
    WARNING,
    Confidence,
    Finding,
    Place,
    Prescription,
    Stalls,
)
from distdoctor.diagnosis.hang.coverage import left_open
from distdoctor.diagnosis.hang.ending import is_end
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.diagnosis.source.patch import patch_of, sources_that_ran, working_folder
from distdoctor.recording.coverage import Coverage
from distdoctor.recording.garbage import without_garbage_collection
from distdoctor.recording.recording import Recording

_SURENESS: dict[Confidence, int] = {CERTAIN: 0, LIKELY: 1}


MANY_RANKS = 256  # and more: what is worked out about them is millions of objects


def examine(
    recording: Recording,
    checks: Iterable[Check],
    remedies: Mapping[str, Remedy] | None = None,
    *,
    live: bool = False,
) -> Diagnosis:
    """The diagnosis of a recording: the most severe first, then what the ranks wait for, then what happened first, then what is
    surest.

    `live`: the job still runs, so only checks whose findings are true at once are asked.
    """
    with without_garbage_collection(len(recording.ranks) >= MANY_RANKS):
        return _examine(recording, tuple(checks), remedies, live)


def _examine(
    recording: Recording, checks: tuple[Check, ...], remedies: Mapping[str, Remedy] | None, live: bool
) -> Diagnosis:
    coverage = Coverage.of(recording)
    found: list[tuple[Check, Finding]] = []
    not_examined: list[NotExamined] = []
    examined: list[str] = []
    for check in sorted(checks, key=lambda one: Examined in one.facts):
        if live and not check.live:
            continue
        if Examined in check.facts:
            recording.derived[Examined] = _examined(recording, coverage, checks, examined, found)
        absent = check.streams - recording.streams
        if absent:
            not_examined.append(NotExamined(check.code, check.slug, not_recorded(absent)))
            continue
        silenced = [trouble for trouble in recording.troubles if trouble.silenced & check.may_use]
        if silenced:  # what a half recording does not hold may have happened: it must not be held against the rank
            not_examined.append(NotExamined(check.code, check.slug, silenced[0].what))
            continue
        try:
            findings = list(_within(coverage, check, map(_of_the_job, check.look(recording))))
            found += [(check, finding) for finding in findings]
            examined.append(check.code)
        except NotSeen as reason:
            not_examined.append(NotExamined(check.code, check.slug, str(reason), not isinstance(reason, NotApplicable)))
        except Exception as error:
            failed = f"{CHECK_FAILED}: {type(error).__name__}: {error}"
            not_examined.append(NotExamined(check.code, check.slug, failed))
    findings = with_patches(_ranked(_most_specific(found)), recording)
    slugs = {cure.slug for finding in findings for cure in finding.prescriptions}
    described = {slug: remedy for slug, remedy in (remedies or {}).items() if slug in slugs}
    diagnosis = Diagnosis(
        job=recording.job,
        findings=tuple(findings),
        not_examined=tuple(not_examined),
        examined=tuple(examined),
        remedies=described,
        world_size=recording.world_size,
        left_open=left_open(recording),
        coverage=coverage,
        troubles=recording.troubles,
        recording=recording,
        checks={check.code: check for check in checks},
    )
    if (
        live
    ):  # looked at once, and then again and again: facts refer to their recording, so both would wait for the collector
        recording.derived.clear()
    return diagnosis


def _examined(
    recording: Recording,
    coverage: Coverage,
    checks: Iterable[Check],
    looked: Collection[str],
    found: Iterable[tuple[Check, Finding]],
) -> Examined:
    """What a check is told of those that were asked before it."""
    return Examined(
        installed=names_of(checks),
        looked=names_of(one for one in checks if one.code in looked),
        findings=tuple(finding for _, finding in found),
        whole=coverage.complete and recording.job.exit_code == 0 and not recording.job.running,
    )


def with_patches(findings: Iterable[Finding], recording: Recording) -> list[Finding]:
    """The findings with a patch in the place of every edit that can be trusted; what is left of the others is words."""
    digests, cwd = sources_that_ran(recording), working_folder(recording)
    return [
        replace(
            finding, prescriptions=tuple(_with_patch(one, recording, digests, cwd) for one in finding.prescriptions)
        )
        if any(one.edits for one in finding.prescriptions)
        else finding
        for finding in findings
    ]


def _with_patch(
    one: Prescription, recording: Recording, digests: Mapping[str, frozenset[str]], cwd: str
) -> Prescription:
    patch = patch_of(one.edits, recording.sources, digests, cwd) if one.edits else None
    return replace(one, edits=one.edits if patch is not None else (), patch=patch)


def _most_specific(found: Sequence[tuple[Check, Finding]]) -> Iterator[tuple[Check, Finding]]:
    """Of all findings that explain the same fact, those of the one check that is most specific about it."""
    best: dict[str, tuple[int, str]] = {}
    for check, finding in found:
        for fact in finding.explains:
            best[fact] = min(_claim(check, finding), best.get(fact, _claim(check, finding)))
    for check, finding in found:
        if not finding.explains or any(best[fact] == _claim(check, finding) for fact in finding.explains):
            yield check, finding


def _claim(check: Check, finding: Finding) -> tuple[int, str]:
    """The smaller, the more specific; of two that are equally so, the one of the first code."""
    return -(finding.specificity or 0), check.code


def _ranked(found: Iterable[tuple[Check, Finding]]) -> list[Finding]:
    """The findings in the order in which they are told, symptoms under what they follow from, one event told once."""
    families: dict[str, list[Finding]] = defaultdict(list)
    symptoms: list[Finding] = []
    symptomatic: set[str] = set()  # codes whose notes come last: any other note may say why
    for check, finding in found:
        symptomatic |= {check.code} if check.symptom else set()
        is_symptom = check.symptom and finding.severity == WARNING
        (symptoms if is_symptom else families[check.family]).append(finding)
    told = families.pop("", []) + [one for family in families.values() for one in _told_once(family)]
    ordered = sorted(_with_symptoms(sorted(told, key=_order), symptoms), key=_order)
    return sorted(ordered, key=lambda one: one.severity == NOTE and one.code in symptomatic)


def _of_the_job(finding: Finding) -> Finding:
    """The finding without the lines of `check-data --loader`, which nobody can change."""
    places = tuple(one for one in finding.places if not one.site.walks)
    return finding if len(places) == len(finding.places) else replace(finding, places=places)


def _within(coverage: Coverage, check: Check, findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, none of them surer than what was seen of the job allows: of ranks that left nothing, any could be the one
    that came first or that differs, and records that may be damaged prove nothing."""
    allowed = coverage.allows_certainty and (coverage.all_ranks or check.stands_alone)
    for finding in findings:
        overturned = finding.confidence == CERTAIN and not allowed
        yield replace(finding, confidence=LIKELY) if overturned else finding


def _with_symptoms(findings: list[Finding], symptoms: Sequence[Finding]) -> list[Finding]:
    """Each symptom under the first finding that explains it: one as grave, on the same ranks; else as a finding of its own."""
    told = list(findings)
    for symptom in symptoms:
        explained = (
            number
            for number, one in enumerate(findings)
            if (one.severity or NOTE) >= WARNING and set(one.ranks) >= set(symptom.ranks)
        )
        number = next(explained, None)
        if number is None:
            told.append(symptom)
        else:
            follows = Place(symptom.place, symptom.ranks, f"follows from it ({symptom.code}): {symptom.title}")
            told[number] = replace(told[number], places=(*told[number].places, follows))
    return told


def _told_once(family: Sequence[Finding]) -> Iterator[Finding]:
    """Without the notes on ranks that a graver finding of the same family names: it says more about the same event."""
    graver = [{*finding.ranks, *finding.delays} for finding in family if (finding.severity or NOTE) > NOTE]
    for finding in family:
        is_note = finding.severity == NOTE and bool(finding.ranks)
        if not (is_note and any(ranks.issuperset(finding.ranks) for ranks in graver)):
            yield finding


def _order(finding: Finding) -> tuple[int, bool, int, int, int, str, tuple[int, ...]]:
    """The order in which findings are told: the gravest first, of these what ranks wait for, then warnings and notes by how
    sure they are, errors by time: errors are what ended the job, and a cause comes before what follows from it."""
    when, sureness = finding.at_ns or 1 << 63, _SURENESS.get(finding.confidence, 2)
    first = 0 if finding.severity == ERROR else sureness
    return (-(finding.severity or 0), not _hangs(finding), first, when, sureness, finding.code, finding.ranks)


def _hangs(finding: Finding) -> bool:
    """Whether ranks that live wait because of it, for ever or as long as anybody looked: that is what the job is asked about.
    What has ended a rank may follow from something earlier, so there time decides."""
    waits = finding.stalls is Stalls.FOREVER or (finding.stalls is Stalls.MAYBE and finding.severity == ERROR)
    return waits and not any(is_end(fact) for fact in finding.explains)
