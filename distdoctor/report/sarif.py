"""The report for code scanning: SARIF 2.1.0, as GitHub and editors read it."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, NOTE, WARNING, Finding
from distdoctor.recording.recording import SourceLine
from distdoctor.report.text import block_of
from distdoctor.report.verdict import gap, verdict

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {ERROR: "error", WARNING: "warning", NOTE: "note"}


def render(diagnosis: Diagnosis) -> str:
    """The diagnosis as one SARIF log; suppressed findings are in it as suppressed."""
    everything = (*diagnosis.findings, *diagnosis.suppressed)
    rules = {finding.code: finding.slug for finding in everything}
    run = {
        "tool": {
            "driver": {
                "name": "distdoctor",
                "rules": [{"id": code, "name": slug} for code, slug in sorted(rules.items())],
            }
        },
        "invocations": [_invocation(diagnosis)],
        "results": [
            *(_result(finding, diagnosis) for finding in diagnosis.findings),
            *({**_result(f, diagnosis), "suppressions": [{"kind": "inSource"}]} for f in diagnosis.suppressed),
        ],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _invocation(diagnosis: Diagnosis) -> dict[str, Any]:
    """How the examination itself went: without it no results would read as health."""
    words = [gap(diagnosis), *(trouble.what for trouble in diagnosis.troubles)]
    if not diagnosis.findings and not diagnosis.healthy:
        words.insert(0, verdict(diagnosis))
    notes = [{"level": "warning", "message": {"text": text}} for text in words if text]
    return {"executionSuccessful": bool(diagnosis.findings) or diagnosis.healthy, "toolExecutionNotifications": notes}


def _result(finding: Finding, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "level": LEVELS.get(finding.severity or NOTE, "note"),
        "message": {"text": "\n".join(block_of(finding, diagnosis))},
        "locations": [_location(finding.place)] if finding.place else [],
        "relatedLocations": [_location(place.site, place.role) for place in finding.places if place.site],
        "properties": {"ranks": list(finding.ranks), "confidence": str(finding.confidence)},
    }


def _location(site: SourceLine, words: str = "") -> dict[str, Any]:
    uri = PurePosixPath(site.path).as_uri() if site.path.startswith("/") else site.path
    physical = {"artifactLocation": {"uri": uri}, "region": {"startLine": max(site.line, 1)}}
    return {"physicalLocation": physical, **({"message": {"text": words}} if words else {})}
