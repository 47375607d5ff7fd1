"""Findings that the user has seen and accepted: by a comment on one of its lines, by `--ignore`, by the settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import Finding
from distdoctor.diagnosis.source.ignore_comments import accepted_on
from distdoctor.recording.source_texts import line_of


def suppress(diagnosis: Diagnosis, sources: Mapping[str, str], ignored: Collection[str] = ()) -> Diagnosis:
    """The diagnosis with the accepted findings moved to `suppressed`. `ignored` are codes or slugs, in upper or lower case."""
    accepted = [f for f in diagnosis.findings if _is_accepted(f, sources, ignored)]
    kept = [f for f in diagnosis.findings if f not in accepted]
    return replace(diagnosis, findings=tuple(kept), suppressed=(*diagnosis.suppressed, *accepted))


def is_named(code: str, slug: str, names: Iterable[str]) -> bool:
    """Whether one of `names`, written by the user, is this code or this slug, in upper or lower case."""
    return bool({code.lower(), slug.lower()} & {name.strip().lower() for name in names})


def _is_accepted(finding: Finding, sources: Mapping[str, str], ignored: Collection[str]) -> bool:
    if is_named(finding.code, finding.slug, ignored):
        return True
    comments = (accepted_on(line_of(sources, path, line)) for path, line in finding.lines)
    return any(is_named(finding.code, finding.slug, names) for names in comments)
