"""SARIF, JUnit, GitHub and HTML: whole, valid, and safe with whatever a job calls itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sick import diagnosis_of

from distdoctor.cli.deliver import step_summary
from distdoctor.diagnosis.diagnosis import Diagnosis, NotExamined
from distdoctor.diagnosis.finding import ERROR, NOTE, Finding, Place, Prescription
from distdoctor.recording.recording import Job, RankEnd, SourceLine
from distdoctor.report import github, html, junit, markdown, sarif

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


@pytest.mark.parametrize("code", ["DD101", "DD108", "DD202", "DD301"])
def test_sarif_names_each_line_once_and_says_what_each_rank_did_there(code: str) -> None:
    diagnosis = diagnosis_of(code)

    (result,) = json.loads(sarif.render(diagnosis))["runs"][0]["results"]
    places = [*result["locations"], *result["relatedLocations"]]
    lines = [
        (one["physicalLocation"]["artifactLocation"]["uri"], one["physicalLocation"]["region"]["startLine"])
        for one in places
    ]
    told = "; ".join(one.get("message", {}).get("text", "") for one in places)

    assert len(lines) == len(set(lines))
    assert all(place.role in told for place in diagnosis.findings[0].places)


def test_sarif_points_at_the_line_and_keeps_the_suppressed_as_suppressed() -> None:
    run = json.loads(sarif.render(DIAGNOSIS))["runs"][0]

    first, second, suppressed = run["results"]
    place = first["locations"][0]["physicalLocation"]
    assert (first["ruleId"], first["level"]) == ("DD101", "error")
    assert place == {"artifactLocation": {"uri": "file:///home/me/my%20train.py"}, "region": {"startLine": 57}}
    assert first["relatedLocations"][0]["message"]["text"] == "rank 0: waits"
    assert second["level"] == "note"
    assert second["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "train.py"}  # what the job runs
    assert suppressed["suppressions"] == [{"kind": "inSource"}]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["DD101", "DD302", "DD900"]


@pytest.mark.parametrize(
    ("argv", "uri"),
    [
        (("run", "--nproc", "2", "-m", "mylab.train", "--lr", "1"), "mylab/train.py"),
        (("torchrun", "my train.py"), "my%20train.py"),
        (("distdoctor", "--strategy", "ddp"), "distdoctor"),
        ((), "job"),
    ],
)
def test_in_sarif_every_result_has_a_place(argv: tuple[str, ...], uri: str) -> None:
    """GitHub refuses the whole report otherwise (GH1015 of Microsoft's multitool)."""
    finding = replace(FINDING, place=SourceLine(), places=())
    diagnosis = replace(DIAGNOSIS, job=replace(DIAGNOSIS.job, argv=argv), findings=(finding,), suppressed=())

    (result,) = json.loads(sarif.render(diagnosis))["runs"][0]["results"]

    assert [one["physicalLocation"]["artifactLocation"] for one in result["locations"]] == [{"uri": uri}]


def test_junit_has_a_case_per_check_failed_passed_or_skipped() -> None:
    suite = ElementTree.fromstring(junit.render(DIAGNOSIS))

    kinds = {case.attrib["name"]: [child.tag for child in case] for case in suite.iter("testcase")}
    assert kinds == {
        "DD101 skipped-collective": ["failure"],
        "DD102": [],
        "DD900 skipped-collective": ["failure"],
        "DD301 missing-set-epoch": ["skipped"],
    }
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("4", "2", "1")


def test_junit_has_all_that_the_schema_of_apache_ant_demands() -> None:
    """Its JUnit.xsd by Windy Road; not shipped here."""
    suite = ElementTree.fromstring(junit.render(diagnosis_of("DD301")))

    assert {"name", "timestamp", "hostname", "tests", "failures", "errors", "time"} <= set(suite.attrib)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
    tags = [one.tag for one in suite]
    assert (tags[0], tags[-2:], set(tags[1:-2])) == ("properties", ["system-out", "system-err"], {"testcase"})
    assert all({"name", "classname", "time"} == set(case.attrib) for case in suite.iter("testcase"))
    assert all(one.get("type") for kind in ("failure", "error") for one in suite.iter(kind))


def test_junit_has_the_slugs_of_all_checks_and_how_long_the_job_was_recorded() -> None:
    suite = ElementTree.fromstring(junit.render(diagnosis_of("DD301")))

    assert all(re.fullmatch(r"[A-Z]+\d+ [a-z0-9-]+", case.attrib["name"]) for case in suite.iter("testcase"))
    assert float(suite.attrib["time"]) > 0


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


def test_markdown_has_a_table_of_findings_and_the_first_ones_in_full() -> None:
    lines = markdown.render(DIAGNOSIS).splitlines()

    assert lines[0].startswith("## distdoctor: 1 error \\(DD101\\), 1 note \\(DD900\\)")
    assert lines[4] == (
        "| DD101 skipped-collective | error | rank 1 | /home/me/my train.py:57 save | left the others \\(certain\\) |"
    )
    assert lines[7] == "```text"
    assert lines[8].startswith("DD101 error  rank 1")


def test_markdown_and_sarif_name_files_by_their_paths_in_the_folder() -> None:
    page, run = (
        markdown.render(DIAGNOSIS, base="/home/me"),
        json.loads(sarif.render(DIAGNOSIS, base="/home/me"))["runs"][0],
    )

    assert "| rank 1 | my train.py:57 save |" in page
    assert "/home/me" not in page
    artifact = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "my%20train.py", "uriBaseId": "SRCROOT"}


def test_sarif_shows_the_line_and_those_around_it() -> None:
    run = json.loads(sarif.render(diagnosis_of("DD401")))["runs"][0]

    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": 4, "snippet": {"text": "        total += loss"}}
    assert (place["contextRegion"]["startLine"], place["contextRegion"]["endLine"]) == (2, 5)
    assert place["contextRegion"]["snippet"]["text"].splitlines()[2] == "        total += loss"


def test_in_markdown_hostile_names_are_neither_markup_nor_the_end_of_a_block() -> None:
    evil = "```\n<script>alert(1)</script> @everyone all_reduce #128 | ![x](http://x)"
    hostile = replace(DIAGNOSIS, findings=(replace(FINDING, title=evil, why=evil, place=SourceLine(evil, 1, evil)),))

    page = markdown.render(hostile)
    row = next(line for line in page.splitlines() if line.startswith("| DD101"))

    assert "<script>" not in row.replace("\\<script\\>", "")
    assert "\\@<!-- -->everyone" in row
    assert "all\\_reduce \\#<!-- -->128" in row
    assert page.count("\n````text\n") == 1
    assert page.count("\n````\n") == 1


def test_the_page_of_a_job_on_github_gets_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "summary.md"
    page.write_text("# before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    step_summary(DIAGNOSIS)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "gone" / "summary.md"))
    step_summary(DIAGNOSIS)

    assert page.read_text().startswith("# before\n## distdoctor: 1 error")
    assert capsys.readouterr().err == "distdoctor: GITHUB_STEP_SUMMARY cannot be written: No such file or directory\n"
