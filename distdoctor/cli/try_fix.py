"""`distdoctor run --try-fix`: the first patch of the findings, tried on a copy of the job."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdoctor.diagnosis.diagnosis import Diagnosis, FixOutcome, TriedFix
from distdoctor.diagnosis.finding import ERROR, NOTE, WARNING, Finding, Prescription
from distdoctor.diagnosis.source.edits import applied
from distdoctor.launch.post_mortem import diagnose
from distdoctor.launch.run_options import Outcome
from distdoctor.launch.second_run import JobProgress, SecondRun, SecondRunOrder, root_of, run_again
from distdoctor.recording.recording import Call, Recording, SourceLine
from distdoctor.recording.trace.layout import Op, source_digest
from distdoctor.report.root_cause import failed, root_cause

if TYPE_CHECKING:
    from distdoctor.plugins import Plugins

LEAST_SECONDS = 120.0
TIMES_AS_LONG = 3.0
NOT_TRIED, UNDECIDED = FixOutcome.NOT_TRIED, FixOutcome.UNDECIDED


@dataclass(frozen=True)
class FirstRun:
    """What was run: distdoctor's arguments, the script's part of them, when it began and for how long it ran."""

    argv: tuple[str, ...]
    script: tuple[str, ...]
    nodes: int
    began_wall_ns: int
    seconds: float

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments before the script."""
        return self.argv[: len(self.argv) - len(self.script)]


def with_fix_tried(outcome: Outcome, first: FirstRun, plugins: Plugins, ignored: Sequence[str]) -> Diagnosis:
    """The diagnosis with what came of its first patch; the finding's prescription says whether it is verified."""
    from distdoctor.cli.deliver import notice

    diagnosis = outcome.diagnosis
    chosen = first_patch(diagnosis)
    tried = _refused(outcome, first, chosen)
    if tried is None and chosen is not None:
        notice(f"trying the fix of {chosen[0].code} in a copy of the job's folder: nothing of yours is changed")
        tried = _tried(outcome, first, chosen, plugins, ignored)
    assert tried is not None
    notice(f"fix {tried.outcome}: {tried.words}")
    if tried.outcome is FixOutcome.VERIFIED and chosen is not None:
        diagnosis = _marked(diagnosis, *chosen)
    return replace(diagnosis, tried=tried)


def first_patch(diagnosis: Diagnosis) -> tuple[Finding, Prescription] | None:
    """The first finding that shows a patch, with it."""
    return next(((f, cure) for f in diagnosis.findings for cure in f.prescriptions if cure.patch is not None), None)


def _refused(outcome: Outcome, first: FirstRun, chosen: tuple[Finding, Prescription] | None) -> TriedFix | None:
    """Why there is nothing to run; None where there is."""
    if outcome.interrupted:
        return TriedFix(NOT_TRIED, "the job was ended from outside, so how far it has to come is not known")
    if chosen is None:
        what = "no finding shows a patch" if outcome.diagnosis.findings else "there is no finding"
        return TriedFix(NOT_TRIED, what)
    code = chosen[0].code
    if first.nodes > 1:
        return TriedFix(NOT_TRIED, f"the job has {first.nodes} nodes and this is one of them", code)
    assert chosen[1].patch is not None
    for path, digest in chosen[1].patch.digests:
        try:
            edited = source_digest(Path(path).read_bytes()) != digest
        except OSError as trouble:
            return TriedFix(NOT_TRIED, f"{path} cannot be read: {trouble.strerror}", code)
        if edited:
            return TriedFix(NOT_TRIED, f"{path} was edited while the job ran, and the patch is for what ran", code)
    return None


def _tried(
    outcome: Outcome, first: FirstRun, chosen: tuple[Finding, Prescription], plugins: Plugins, ignored: Sequence[str]
) -> TriedFix:
    finding, cure = chosen
    assert cure.patch is not None
    progress = JobProgress.of(outcome.recording)
    ended_well = not outcome.hung and not failed(outcome.diagnosis.job)
    paths = [path for path, _ in cure.patch.digests]
    again = SecondRunOrder(
        first.options,
        first.script,
        root_of(first.script, paths, os.getcwd()),
        {path: _patched(path, cure) for path in paths},
        None if ended_well else progress,
        first.began_wall_ns,
        max(LEAST_SECONDS, TIMES_AS_LONG * first.seconds),
    )
    with tempfile.TemporaryDirectory(prefix="distdoctor-fix-", ignore_cleanup_errors=True) as place:
        second = run_again(again, Path(place).resolve())
        return _judged(finding, outcome, progress, again, second, plugins, ignored)


def _patched(path: str, cure: Prescription) -> str:
    text = Path(path).read_bytes().decode()
    return applied(text, [edit for edit in cure.edits if edit.path == path])[0]


def _judged(
    finding: Finding,
    outcome: Outcome,
    before: JobProgress,
    again: SecondRunOrder,
    second: SecondRun,
    plugins: Plugins,
    ignored: Sequence[str],
) -> TriedFix:
    """What the second run says about the patch."""
    if second.recording is None or not second.recording.ranks:
        last = second.last_words.rpartition("\n")[2]
        return TriedFix(UNDECIDED, f"the second run left no recording: {last}", finding.code, seconds=second.seconds)
    now = JobProgress.of(second.recording)
    diagnosis = diagnose(second.recording, plugins.checks, plugins.remedies, ignored)
    instead = tuple(
        _in_the_folder(one, second.folder, again.folder)
        for one in diagnosis.findings
        if _speaks_against(one, finding, outcome.diagnosis)
    )
    made = TriedFix(UNDECIDED, "", finding.code, instead, now.steps[0], second.seconds)
    if not _ran_the_patch(second, again):
        return replace(made, words=f"the ranks imported {Path(next(iter(again.texts))).name} from elsewhere")
    far = f"to step {now.steps[0]}" if now.steps[0] else f"through {now.calls[0]} collectives"
    if instead:
        return replace(
            made, outcome=FixOutcome.NOT_VERIFIED, words=f"with it the job ran {far} and then: {_named(instead[0])}"
        )
    if failed(diagnosis.job) and not second.stopped and not second.timed_out:
        words = f"with it the job ran {far} and then failed{_by_whom(diagnosis)}"
        return replace(made, outcome=FixOutcome.NOT_VERIFIED, words=words)
    if second.timed_out:
        return replace(
            made, words=f"with it the job ran {far} in {second.seconds:.0f} s, which is not far enough to tell"
        )
    shorter = not second.stopped and again.stop_past is not None and now.steps[1] < before.steps[1]
    if shorter and not _last_calls(outcome.recording) <= _all_calls(second.recording):
        words = (
            f"with it the script ended by itself at step {now.steps[1]}, before step {before.steps[1]} of the first run"
        )
        return replace(made, words=words)
    ended = "to its end" if not second.stopped else far
    words = f"with it the job ran {ended} in {second.seconds:.0f} s, and {finding.code} did not come back"
    return replace(made, outcome=FixOutcome.VERIFIED, words=words)


def _speaks_against(one: Finding, tried: Finding, first: Diagnosis) -> bool:
    """Whether a finding of the second run is the illness itself, or came in its place."""
    if one.code == tried.code:
        return True
    known = any((one.code, one.place.function) == (f.code, f.place.function) for f in first.findings)
    severity = one.severity or NOTE
    return not known and (severity >= ERROR or (severity >= WARNING and one.code[:3] == tried.code[:3]))


def _last_calls(recording: Recording) -> set[tuple[str, str, Op]]:
    """(file, function, operation) of the calls that the ranks were in when they stood or ended. Lines move with a patch."""
    return {_kind_of(call) for log in recording.ranks.values() if len(log.calls) for call in [log.call(log.calls[-1])]}


def _all_calls(recording: Recording) -> set[tuple[str, str, Op]]:
    """The same of all calls that are on record."""
    return {_kind_of(log.call(row)) for log in recording.ranks.values() for row in log.calls}


def _kind_of(call: Call) -> tuple[str, str, Op]:
    return os.path.basename(call.site.path), call.site.function, call.op


def _ran_the_patch(second: SecondRun, again: SecondRunOrder) -> bool:
    """Whether the ranks ran the patched files, as far as they noted which they ran."""
    assert second.recording is not None
    return not any(path in second.recording.sources for path in again.texts)


def _in_the_folder(one: Finding, copy: Path, folder: Path) -> Finding:
    """A finding about the copy, with the user's own paths and without patches for files that are gone."""

    def of_the_user(site: SourceLine) -> SourceLine:
        below = f"{copy}{os.sep}"
        return replace(site, path=f"{folder}{os.sep}{site.path[len(below) :]}") if site.path.startswith(below) else site

    places = tuple(replace(place, site=of_the_user(place.site)) for place in one.places)
    cures = tuple(replace(cure, patch=None, edits=()) for cure in one.prescriptions)
    return replace(one, place=of_the_user(one.place), places=places, prescriptions=cures)


def _named(one: Finding) -> str:
    place = f" at {one.place.short}" if one.place else ""
    return f"{one.code}{place}: {one.title}"


def _by_whom(diagnosis: Diagnosis) -> str:
    cause = root_cause(diagnosis)
    return f" (rank {cause.rank})" if cause is not None else ""


def _marked(diagnosis: Diagnosis, finding: Finding, cure: Prescription) -> Diagnosis:
    cures = tuple(replace(one, verified=True) if one is cure else one for one in finding.prescriptions)
    better = replace(finding, prescriptions=cures)
    return replace(diagnosis, findings=tuple(better if one is finding else one for one in diagnosis.findings))


def first_run(
    argv: Sequence[str], values: Mapping[str, Any], command: Sequence[str] | None, nodes: int, began: tuple[int, float]
) -> FirstRun:
    """What was run, from the command line. `began`: when, on the wall clock (ns), and how many seconds ago."""
    script = ("--", *command) if command is not None else tuple(values["script"])
    return FirstRun(tuple(argv), script, nodes, began[0], began[1])
