"""The report for programs: one JSON document whose shape `distdoctor schema` prints."""

from __future__ import annotations

import importlib.metadata
import json
import math
from typing import Any

import msgspec

from distdoctor.diagnosis.diagnosis import Diagnosis, NotExamined
from distdoctor.diagnosis.finding import Finding, Prescription
from distdoctor.diagnosis.finding import Place as RolePlace
from distdoctor.diagnosis.speed.step_times import PHASES, StepTimes, step_times
from distdoctor.recording.coverage import Coverage
from distdoctor.recording.recording import SourceLine
from distdoctor.report.pictures.gallery import pictures
from distdoctor.report.pictures.stacks import stacks_of
from distdoctor.report.root_cause import root_cause
from distdoctor.report.stack_tree import as_json
from distdoctor.report.verdict import sentence, state, verdict

SCHEMA_VERSION = 2  # 2: `withdrawn`, `applies` of what was not examined, `step_times`, `stacks`, `tables`


class PlaceJson(msgspec.Struct, frozen=True):
    """A line of source. `path` is absolute as the rank saw it, null when the line is unknown."""

    path: str | None
    line: int | None
    function: str | None


class RolePlaceJson(PlaceJson, frozen=True):
    """A line that matters, the ranks that are there, and what they do there."""

    ranks: list[int]
    role: str


class RemedyJson(msgspec.Struct, frozen=True):
    """A cure. `change` is in words, or lines to write. `patch`: the edit of the source that ran, a unified diff for `git apply`
    run in `patch_folder` ("": paths are as they were given); null where no edit could be checked. `patch_digests`: path ->
    BLAKE2b (8 bytes) of the file that it is made for. `verified`: distdoctor has run the job again with it, and it helped."""

    slug: str
    what: str
    change: str
    effect: str
    safety: str
    verified: bool
    patch: str | None
    patch_folder: str
    patch_digests: dict[str, str]


class FindingJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """One illness. `ranks` are the odd ones out, most suspect first; where it is `undecided` they disagree, and nothing tells
    which of them is wrong."""

    code: str
    slug: str
    severity: str
    confidence: str
    ranks: list[int]
    title: str
    why: str
    place: PlaceJson
    places: list[RolePlaceJson]
    evidence: dict[str, Any]
    remedies: list[RemedyJson]
    undecided: bool = False


class WithdrawnJson(msgspec.Struct, frozen=True):
    """What was said while the job ran and taken back, because the ranks went on or agreed again: after so many seconds."""

    finding: FindingJson
    seconds: float


class NotExaminedJson(msgspec.Struct, frozen=True):
    """A check that could not be made, and why; never the same as healthy. `applies`: false where its question does not arise."""

    code: str
    slug: str
    reason: str
    applies: bool


class RootCauseJson(msgspec.Struct, frozen=True):
    """The rank that brought the job down. `exit_code` is null when a signal killed it or its end was not seen; `signal`
    too where it came after an exception that is on record."""

    rank: int
    exit_code: int | None
    signal: int | None


class JobJson(msgspec.Struct, frozen=True):
    """The job as a whole. `exit_code` is the launcher's, null while the job runs or when nobody saw its end."""

    argv: list[str]
    world_size: int
    exit_code: int | None
    root_cause: RootCauseJson | None
    launcher: str
    strategy: str


class CoverageJson(msgspec.Struct, frozen=True):
    """How much of the job was seen. Every rank below `expected` is in one of the seven lists; only where all are in `whole`,
    `gaps` is empty and no check found anything is the job healthy. `hosts`: the ranks that were seen, by host."""

    expected: int
    whole: list[int]
    silenced: list[int]
    torn: list[int]
    unreadable: list[int]
    unread: list[int]
    elsewhere: list[int]
    missing: list[int]
    hosts: dict[str, list[int]]
    gaps: list[str]


class TriedFixJson(msgspec.Struct, frozen=True):
    """The job run again in a copy with the patch of the first finding that has one. `outcome`: verified, not verified, undecided
    or not tried; `words` say why, `findings` what came instead. `steps`: how far every rank came."""

    outcome: str
    words: str
    code: str
    findings: list[FindingJson]
    steps: int
    seconds: float


class TroubleJson(msgspec.Struct, frozen=True):
    """What distdoctor itself could not do. `rank` is null where it concerns no rank in particular."""

    rank: int | None
    what: str


class TableJson(msgspec.Struct, frozen=True):
    """A table of the report. `rows` have one value for each of `columns`; times are nanoseconds, sizes bytes, shares 0-1. `notes`
    are the lines below it: of memory, what each remedy would take off."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[str | int | float | None]]
    notes: list[str]


class StepTimesJson(msgspec.Struct, frozen=True):
    """Where a median step of one rank went, in nanoseconds; null where a phase cannot be told. `steps`: how many were regular."""

    rank: int
    steps: int
    step: float | None
    data: float | None
    forward: float | None
    backward: float | None
    waiting: float | None
    optimizer: float | None
    other: float | None


class FrameJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """One frame, the innermost first. `arguments` are those of torch's own functions that tell."""

    function: str
    path: str
    line: int
    arguments: dict[str, str] = {}


class ThreadJson(msgspec.Struct, frozen=True):
    """One thread. `id` is the kernel's, equal to the pid for the main thread."""

    id: int
    name: str
    holds_gil: bool
    frames: list[FrameJson]


class ProcessJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process as it was seen from outside. `role` is rank, worker (of a DataLoader) or child; a rank without a process has
    no other fields than `pid`, which is null."""

    rank: int
    role: str
    pid: int | None
    worker: int | None = None
    command: str = ""
    state: str = ""
    moved: bool = False
    cpu_share: float = 0.0
    still_seconds: float | None = None
    wchan: str = ""
    syscall: int = -1
    held_gil: bool = False
    trouble: str = ""
    threads: list[ThreadJson] = []
    cpp_threads: list[ThreadJson] = []


class ReportJson(msgspec.Struct, frozen=True, omit_defaults=True):
    """A diagnosis. `findings[0]` is the root cause. `state` is findings, failed, healthy, incomplete or nothing examined;
    `verdict` says the same in a sentence."""

    schema_version: int
    state: str
    verdict: str
    coverage: CoverageJson | None
    troubles: list[TroubleJson]
    job: JobJson
    findings: list[FindingJson]
    not_examined: list[NotExaminedJson]
    examined: list[str]
    suppressed: list[FindingJson]
    withdrawn: list[WithdrawnJson]
    left_open: list[str]  # what the recording does not answer: with no findings the job is unknown, not healthy
    distdoctor_version: str
    hung: bool  # the job was found to hang while it ran
    ended_by_distdoctor: bool  # because of what was found; then the ranks' ends are no cause
    step_times: list[StepTimesJson]
    stacks: list[ProcessJson]  # the newest that somebody took, while the job ran
    tables: list[TableJson]  # those of the pictures of the page as well
    tried_fix: TriedFixJson | None = None  # only of `run --try-fix`
    judged_by: str | None = None  # of a job on many hosts: the host that judged for all, where that was another one
    # Only of `hang-dump`:
    bundle: str | None = None  # base64, for `distdoctor examine`
    flight_recorder: list[dict[str, Any]] | None = None
    nccl_ras: dict[str, Any] | None = None
    other_jobs: list[dict[str, Any]] | None = None  # in the same shape


def render(diagnosis: Diagnosis) -> str:
    """The diagnosis as one JSON document."""
    report = report_of(diagnosis)
    try:
        text = msgspec.json.encode(report, enc_hook=_plain)
    except UnicodeEncodeError:  # a file name or an argument that is no UTF-8: Python's half surrogates, as JSON escapes
        return json.dumps(msgspec.to_builtins(report, enc_hook=_plain), indent=2) + "\n"
    return msgspec.json.format(text, indent=2).decode() + "\n"


def _plain(value: Any) -> Any:
    """Evidence that JSON has no word for: numpy's numbers and arrays as Python's, everything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def schema() -> str:
    """The JSON schema of what `render` returns."""
    about = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:distdoctor:report:{SCHEMA_VERSION}",
        "title": f"A report of distdoctor, schema version {SCHEMA_VERSION}",
    }
    return json.dumps({**about, **msgspec.json.schema(ReportJson)}, indent=2) + "\n"


def report_of(diagnosis: Diagnosis) -> ReportJson:
    """The diagnosis in the shape of the document."""
    return ReportJson(
        schema_version=SCHEMA_VERSION,
        state=state(diagnosis),
        verdict=sentence(diagnosis.findings[0]) if diagnosis.findings else verdict(diagnosis),
        coverage=_coverage(diagnosis.coverage),
        troubles=[TroubleJson(one.rank if one.rank >= 0 else None, one.what) for one in diagnosis.troubles],
        job=_job(diagnosis),
        findings=[_finding(finding, diagnosis) for finding in diagnosis.findings],
        not_examined=[_not_examined(one) for one in diagnosis.not_examined],
        examined=list(diagnosis.examined),
        suppressed=[_finding(finding, diagnosis) for finding in diagnosis.suppressed],
        withdrawn=[WithdrawnJson(_finding(one, diagnosis), round(after, 1)) for one, after in diagnosis.withdrawn],
        left_open=list(diagnosis.left_open),
        distdoctor_version=importlib.metadata.version("distdoctor"),
        hung=diagnosis.hung,
        ended_by_distdoctor=diagnosis.ended_by_distdoctor,
        step_times=[_step_times(one) for one in step_times(diagnosis.recording)] if diagnosis.recording else [],
        stacks=_stacks(diagnosis),
        tables=_tables(diagnosis),
        tried_fix=_tried(diagnosis),
        judged_by=diagnosis.judged_by or None,
    )


def _tried(diagnosis: Diagnosis) -> TriedFixJson | None:
    one = diagnosis.tried
    if one is None:
        return None
    findings = [_finding(finding, diagnosis) for finding in one.findings]
    return TriedFixJson(str(one.outcome), one.words, one.code, findings, one.steps, round(one.seconds, 1))


def _step_times(one: StepTimes) -> StepTimesJson:
    return StepTimesJson(one.rank, one.steps, _number(one.step), *(_number(one.of(phase)) for phase in PHASES))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value)


def _stacks(diagnosis: Diagnosis) -> list[ProcessJson]:
    found = stacks_of(diagnosis.recording) if diagnosis.recording is not None else None
    return [msgspec.convert(one, ProcessJson) for one in as_json(found)] if found else []


def _tables(diagnosis: Diagnosis) -> list[TableJson]:
    """Every table of the page; of a thousand equal ranks one row."""
    mine, others = pictures(diagnosis)
    tables = [one.table for one in (*mine, *others)]
    return [
        TableJson(one.name, one.title, list(one.columns), [list(row) for row in one.rows], list(one.notes))
        for one in tables
    ]


def _coverage(coverage: Coverage | None) -> CoverageJson | None:
    if coverage is None:
        return None
    return CoverageJson(
        expected=coverage.expected,
        whole=list(coverage.whole),
        silenced=list(coverage.silenced),
        torn=list(coverage.torn),
        unreadable=list(coverage.unreadable),
        unread=list(coverage.unread),
        elsewhere=list(coverage.elsewhere),
        missing=list(coverage.missing),
        hosts={host: list(ranks) for host, ranks in coverage.hosts.items()},
        gaps=list(coverage.gaps),
    )


def _job(diagnosis: Diagnosis) -> JobJson:
    job, cause = diagnosis.job, root_cause(diagnosis)
    return JobJson(
        argv=list(job.argv),
        world_size=diagnosis.world_size,
        exit_code=job.exit_code,
        root_cause=RootCauseJson(cause.rank, cause.exit_code, cause.signal or None) if cause else None,
        launcher=job.launcher,
        strategy=job.strategy,
    )


def _finding(finding: Finding, diagnosis: Diagnosis) -> FindingJson:
    return FindingJson(
        code=finding.code,
        slug=finding.slug,
        severity=finding.severity.word if finding.severity else "note",
        confidence=str(finding.confidence),
        ranks=list(finding.ranks),
        title=finding.title,
        why=finding.why,
        place=PlaceJson(*_line(finding.place)),
        places=[_role_place(place) for place in finding.places],
        evidence=dict(finding.evidence),
        remedies=[_remedy(cure, diagnosis) for cure in finding.prescriptions],
        undecided=finding.undecided,
    )


def _line(site: SourceLine) -> tuple[str | None, int | None, str | None]:
    return (site.path, site.line, site.function) if site else (None, None, None)


def _role_place(place: RolePlace) -> RolePlaceJson:
    path, line, function = _line(place.site)
    return RolePlaceJson(path, line, function, list(place.ranks), place.role)


def _remedy(cure: Prescription, diagnosis: Diagnosis) -> RemedyJson:
    remedy = diagnosis.remedies.get(cure.slug)
    return RemedyJson(
        slug=cure.slug,
        what=remedy.what if remedy else "",
        change=cure.change or (remedy.how if remedy else ""),
        effect=cure.effect or (remedy.effect if remedy else ""),
        safety=remedy.safety if remedy else "",
        verified=cure.verified,
        patch=cure.patch.text if cure.patch else None,
        patch_folder=cure.patch.folder if cure.patch else "",
        patch_digests=dict(cure.patch.digests) if cure.patch else {},
    )


def _not_examined(one: NotExamined) -> NotExaminedJson:
    return NotExaminedJson(one.code, one.slug, one.reason, one.applies)
