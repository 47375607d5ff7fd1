"""SARIF, JUnit, GitHub and HTML: whole, valid, and safe with whatever a job calls itself."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from distdoctor.diagnosis.diagnosis import Diagnosis, NotExamined
from distdoctor.diagnosis.finding import ERROR, NOTE, Finding, Place, Prescription
from distdoctor.recording.recording import Job, RankEnd, SourceLine
from distdoctor.report import github, html, junit, sarif

EVIL = "<script>alert(1)</script>&\"'\n::error::x\x07%0A"
FINDING = Finding(
    title="left the others",
    ranks=(1,),
    place=SourceLine("/home/me/my train.py", 57, "save"),
    places=(Place(SourceLine("/home/me/my train.py", 41, "step"), (0,), "waits"),),
    prescriptions=(Prescription("decide-once", change="-a\n+b"),),
    evidence={"seconds": 3},
    severity=ERROR,
    code="DD101",
    slug="skipped-collective",
)
DIAGNOSIS = Diagnosis(
    Job(("train.py",), world_size=2, exit_code=1, ends={0: RankEnd(None, 15, True), 1: RankEnd(1)}),
    (FINDING, replace(FINDING, code="DD900", severity=NOTE, place=SourceLine(), places=(), ranks=())),
    (NotExamined("DD301", "missing-set-epoch", "no loader was seen"),),
    ("DD101", "DD102"),
    suppressed=(replace(FINDING, code="DD302"),),
    world_size=2,
)
HOSTILE = replace(
    DIAGNOSIS,
    job=replace(DIAGNOSIS.job, argv=(EVIL,), launcher=EVIL),
    findings=(
        replace(
            FINDING,
            title=EVIL,
            why=EVIL,
            place=SourceLine(EVIL, 1, EVIL),
            evidence={EVIL: EVIL},
            prescriptions=(Prescription(EVIL, EVIL),),
        ),
    ),
    not_examined=(NotExamined(EVIL, EVIL, EVIL),),
)


def test_sarif_points_at_the_line_and_keeps_the_suppressed_as_suppressed() -> None:
    run = json.loads(sarif.render(DIAGNOSIS))["runs"][0]

    first, second, suppressed = run["results"]
    place = first["locations"][0]["physicalLocation"]
    assert (first["ruleId"], first["level"]) == ("DD101", "error")
    assert place == {"artifactLocation": {"uri": "file:///home/me/my%20train.py"}, "region": {"startLine": 57}}
    assert first["relatedLocations"][0]["message"]["text"] == "waits"
    assert second["level"] == "note"
    assert second["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "train.py"}  # what the job runs
    assert suppressed["suppressions"] == [{"kind": "inSource"}]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["DD101", "DD302", "DD900"]


def test_junit_has_a_case_per_check_failed_passed_or_skipped() -> None:
    suite = ElementTree.fromstring(junit.render(DIAGNOSIS))

    kinds = {case.attrib["name"]: [child.tag for child in case] for case in suite}
    assert kinds == {"DD101": ["failure"], "DD102": [], "DD900": ["failure"], "DD301": ["skipped"]}
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("4", "2", "1")


def test_github_annotates_the_line() -> None:
    first, second = github.render(DIAGNOSIS).splitlines()

    assert first.startswith(
        "::error file=/home/me/my train.py,line=57,title=DD101 skipped-collective rank 1::DD101 error"
    )
    assert second.startswith("::notice title=DD900")


def test_html_shows_every_finding_and_what_was_not_examined() -> None:
    page = html.render(DIAGNOSIS)

    for words in (
        "DD101 error",
        "left the others",
        "/home/me/my train.py:41 step",
        "+b",
        "no loader was seen",
        "rank 0",
    ):
        assert words in page
    assert "<script" not in page
    assert "://" not in page


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)


def test_nothing_that_a_job_says_becomes_markup() -> None:
    tags = _Tags()
    tags.feed(html.render(HOSTILE))

    assert "script" not in tags.seen


@pytest.mark.parametrize("report", [sarif, junit, github])
def test_hostile_words_break_no_format(report: object) -> None:
    text = report.render(HOSTILE)  # type: ignore[attr-defined]

    if report is sarif:
        json.loads(text)
    elif report is junit:
        ElementTree.fromstring(text)
    else:
        assert len(text.splitlines()) == 1
