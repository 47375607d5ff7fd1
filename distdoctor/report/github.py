"""The report for GitHub Actions: workflow commands that become annotations on the lines."""

from __future__ import annotations

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, NOTE, WARNING, Finding
from distdoctor.report.text import block_of

LEVELS = {ERROR: "error", WARNING: "warning"}


def render(diagnosis: Diagnosis) -> str:
    """One annotation per finding, the root cause first."""
    return "".join(_annotation(finding, diagnosis) + "\n" for finding in diagnosis.findings)


def _annotation(finding: Finding, diagnosis: Diagnosis) -> str:
    level = LEVELS.get(finding.severity or NOTE, "notice")
    fields = {"title": f"{finding.code} {finding.slug} {finding.ranks_named if finding.ranks else ''}".strip()}
    if finding.place:
        fields = {"file": finding.place.path, "line": str(finding.place.line), **fields}
    head = ",".join(f"{name}={_escaped(value, property_=True)}" for name, value in fields.items())
    return f"::{level} {head}::{_escaped(chr(10).join(block_of(finding, diagnosis)))}"


def _escaped(text: str, *, property_: bool = False) -> str:
    """As actions/toolkit escapes it (packages/core/src/command.ts): nothing in a name can start another command."""
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_ else text
