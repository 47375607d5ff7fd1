"""The report for CI servers: JUnit XML with one test case per check."""

from __future__ import annotations

import datetime
import re
from xml.etree import ElementTree

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.recording.recording import Recording
from distdoctor.report.began import began
from distdoctor.report.text import block_of
from distdoctor.report.verdict import gap, verdict

# What XML 1.0 has no place for, even escaped.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def render(diagnosis: Diagnosis) -> str:
    """A case that fails per code with findings, one that passes per healthy check, one that is skipped per unexamined one. The
    suite takes as long as the job was recorded. What strict readers demand (Apache Ant's schema) is there, empty where nothing
    belongs there."""
    found: dict[str, list[str]] = {}
    slugs = {code: check.slug for code, check in diagnosis.checks.items()}
    for finding in diagnosis.findings:
        found.setdefault(finding.code, []).append("\n".join(block_of(finding, diagnosis)))
        slugs[finding.code] = finding.slug
    codes = sorted({*diagnosis.examined, *found})
    suite = ElementTree.Element(
        "testsuite",
        name="distdoctor",
        tests=str(len(codes) + len(diagnosis.not_examined)),
        failures=str(len(found)),
        errors="0",
        skipped=str(len(diagnosis.not_examined)),
        time=f"{_seconds(diagnosis.recording):.3f}",
        timestamp=_timestamp(diagnosis.recording),
        hostname=_host(diagnosis.recording),
    )
    ElementTree.SubElement(suite, "properties")
    for code in codes:
        case = _case(suite, _name(code, slugs.get(code, "")))
        if code in found:
            failure = ElementTree.SubElement(
                case, "failure", message=_clean(found[code][0].partition("\n")[0]), type=code
            )
            failure.text = _clean("\n\n".join(found[code]))
    for one in diagnosis.not_examined:
        case = _case(suite, _name(one.code, one.slug))
        ElementTree.SubElement(case, "skipped", message=_clean(one.reason))
    if (not diagnosis.findings and not diagnosis.healthy) or gap(diagnosis):
        # Not a case that passes or is skipped: a green suite would say that the whole job was seen.
        case = _case(suite, "coverage")
        ElementTree.SubElement(case, "error", message=_clean(gap(diagnosis) or verdict(diagnosis)), type="coverage")
        suite.set("tests", str(int(suite.get("tests", "0")) + 1))
        suite.set("errors", "1")
    for name in ("system-out", "system-err"):
        ElementTree.SubElement(suite, name)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname="distdoctor", name=name, time="0")


def _timestamp(recording: Recording | None) -> str:
    """When the job began, in UTC and without a zone, as JUnit has it; the epoch where nobody noted it."""
    at = began(recording) or datetime.datetime.fromtimestamp(0, datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S")


def _host(recording: Recording | None) -> str:
    hosts = [log.host for log in recording.ranks.values() if log.host] if recording else []
    return _clean(min(hosts, default="localhost"))


def _name(code: str, slug: str) -> str:
    return _clean(f"{code} {slug}".rstrip())


def _seconds(recording: Recording | None) -> float:
    """From the first that any rank noted to the last or to its end, by the clock of its own host."""
    if recording is None:
        return 0.0
    longest = 0
    for rank, log in recording.ranks.items():
        noted = [int(rows["at_ns"][at]) for rows in (log.events, log.steps) if len(rows) for at in (0, -1)]
        end = recording.job.ends.get(rank)
        noted += [end.at_ns] if noted and end is not None and end.at_ns else []
        longest = max(longest, max(noted, default=0) - min(noted, default=0))
    return longest / 1e9


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
