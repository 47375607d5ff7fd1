"""The report for code scanning: SARIF 2.1.0, as GitHub and editors read it."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, NOTE, WARNING, Finding
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Job, SourceLine
from distdoctor.report import links
from distdoctor.report.text import block_of
from distdoctor.report.verdict import gap, verdict

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "SRCROOT"
CONTEXT = 2  # lines on either side
LEVELS = {ERROR: "error", WARNING: "warning", NOTE: "note"}


def render(diagnosis: Diagnosis, *, base: str = "") -> str:
    """The diagnosis as one SARIF log; suppressed findings are in it as suppressed. Files below the folder `base` are named
    relative to it, as code scanning wants them."""
    everything = (*diagnosis.findings, *diagnosis.suppressed)
    rules = {finding.code: finding for finding in everything}
    version = importlib.metadata.version("distdoctor")
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": "distdoctor",
                "version": version,
                # Without an address the URI by which package managers know it: https://github.com/package-url/purl-spec
                "informationUri": links.home() or f"pkg:pypi/distdoctor@{version}",
                "rules": [_rule(finding, diagnosis) for _, finding in sorted(rules.items())],
            }
        },
        "invocations": [_invocation(diagnosis)],
        "results": [
            *(_result(finding, diagnosis, base) for finding in diagnosis.findings),
            *({**_result(f, diagnosis, base), "suppressions": [{"kind": "inSource"}]} for f in diagnosis.suppressed),
        ],
    }
    if base:
        run["originalUriBaseIds"] = {ROOT: {"uri": _uri(base.rstrip("/") + "/")}}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _invocation(diagnosis: Diagnosis) -> dict[str, Any]:
    """How the examination itself went: without it no results would read as health."""
    words = [gap(diagnosis), *(trouble.what for trouble in diagnosis.troubles)]
    if not diagnosis.findings and not diagnosis.healthy:
        words.insert(0, verdict(diagnosis))
    notes = [{"level": "warning", "message": {"text": text}} for text in words if text]
    return {"executionSuccessful": bool(diagnosis.findings) or diagnosis.healthy, "toolExecutionNotifications": notes}


def _rule(finding: Finding, diagnosis: Diagnosis) -> dict[str, Any]:
    """What code scanning shows about a kind of finding: the handbook page of its check, else the finding's own words."""
    check = diagnosis.checks.get(finding.code)
    short = check.headline if check is not None else finding.title
    page = check.handbook if check is not None else finding.why or finding.title
    return {
        "id": finding.code,
        "name": "".join(word.capitalize() for word in finding.slug.split("-")),
        "shortDescription": {"text": _sentence(short)},
        "fullDescription": {"text": _sentence(short)},
        "help": {"text": page, "markdown": f"```text\n{page}\n```"},
        **({"helpUri": links.page_of(finding.code)} if links.page_of(finding.code) else {}),
        "defaultConfiguration": {"level": LEVELS.get(finding.severity or NOTE, "note")},
    }


def _sentence(words: str) -> str:
    words = words.strip() or "a finding"
    return words[0].upper() + words[1:].rstrip(".") + "."


def _result(finding: Finding, diagnosis: Diagnosis, base: str) -> dict[str, Any]:
    sources = diagnosis.recording.sources if diagnosis.recording is not None else {}
    place = finding.place or _script(diagnosis.job)
    roles: dict[SourceLine, list[str]] = {replace(place, function=""): []}
    for other in finding.places:  # code scanning wants each line once
        if other.site:
            words = f"{named(other.ranks)}: {other.role}" if other.ranks else other.role
            roles.setdefault(replace(other.site, function=""), []).append(words)
    where = [_location(site, base, sources, "; ".join(dict.fromkeys(told))) for site, told in roles.items()]
    return {
        "ruleId": finding.code,
        "level": LEVELS.get(finding.severity or NOTE, "note"),
        "message": {"text": "\n".join(block_of(finding, diagnosis))},
        "locations": where[:1],
        "relatedLocations": where[1:],
        "properties": {"ranks": list(finding.ranks), "confidence": str(finding.confidence)},
    }


def _script(job: Job) -> SourceLine:
    """What the job runs, for findings that have no line of their own: GitHub refuses a report in which a result has no place."""
    module = next((name for flag, name in itertools.pairwise(job.argv) if flag in ("-m", "--module")), "")
    script = next((word for word in job.argv if word.endswith(".py")), "")
    return SourceLine(script or (f"{module.replace('.', '/')}.py" if module else next(iter(job.argv), "job")), 1)


def _uri(path: str) -> str:
    """A path as a URI; bytes of a file's name that are no UTF-8 stay what they are."""
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # the half of a pair that no file has in its name
        raw = path.encode("utf-8", "replace")
    return ("file://" if path.startswith("/") else "") + quote(raw)


def _region(lines: Sequence[str], first: int, last: int) -> dict[str, Any]:
    """Lines of a file by their numbers, the last one included, with their text."""
    region: dict[str, Any] = {"startLine": first, "snippet": {"text": "\n".join(lines[first - 1 : last])}}
    return {**region, "endLine": last} if last > first else region


def _location(site: SourceLine, base: str, sources: Mapping[str, str], words: str = "") -> dict[str, Any]:
    below = base.rstrip("/") + "/"
    artifact = {"uri": _uri(site.path)}
    if base and site.path.startswith(below):
        artifact = {"uri": _uri(site.path.removeprefix(below)), "uriBaseId": ROOT}
    physical: dict[str, Any] = {"artifactLocation": artifact, "region": {"startLine": max(site.line, 1)}}
    lines = sources.get(site.path, "").splitlines()
    if 0 < site.line <= len(lines):
        physical["region"] = _region(lines, site.line, site.line)
        if len(lines) > 1:  # around the line, for readers who do not have the file; it has to be more than the line
            around = max(1, site.line - CONTEXT), min(len(lines), site.line + CONTEXT)
            physical["contextRegion"] = _region(lines, *around)
    return {"physicalLocation": physical, **({"message": {"text": words}} if words else {})}
