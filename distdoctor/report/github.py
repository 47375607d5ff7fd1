"""The report for GitHub Actions: workflow commands that become annotations on the lines."""

from __future__ import annotations

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, NOTE, WARNING, Finding
from distdoctor.report.printable import shown
from distdoctor.report.text import block_of
from distdoctor.report.verdict import gap, verdict

LEVELS = {ERROR: "error", WARNING: "warning"}


def render(diagnosis: Diagnosis) -> str:
    """One annotation per finding, the root cause first; then one on what was not seen of the job."""
    lines = [_annotation(finding, diagnosis) for finding in diagnosis.findings]
    if not diagnosis.healthy and (gap(diagnosis) or not lines):
        lines.append(f"::warning title=distdoctor::{_escaped(gap(diagnosis) if lines else verdict(diagnosis))}")
    return "".join(line + "\n" for line in lines)


def _annotation(finding: Finding, diagnosis: Diagnosis) -> str:
    level = LEVELS.get(finding.severity or NOTE, "notice")
    fields = {"title": f"{finding.code} {finding.slug} {finding.ranks_named if finding.ranks else ''}".strip()}
    if finding.place:
        fields = {"file": finding.place.path, "line": str(finding.place.line), **fields}
    head = ",".join(f"{name}={_escaped(value, property_=True)}" for name, value in fields.items())
    return f"::{level} {head}::{_escaped(chr(10).join(block_of(finding, diagnosis)))}"


def _escaped(text: str, *, property_: bool = False) -> str:
    """As actions/toolkit escapes it (packages/core/src/command.ts): nothing in a name can start another command."""
    text = shown(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_ else text
