"""What a job's own strings can do to a terminal, a CI log or a page: nothing; they are shown."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, Finding, Place
from distdoctor.recording.recording import Job, SourceLine
from distdoctor.report import github, html, json_report, junit, sarif, text
from distdoctor.report.printable import printable

HOSTILE = "\x1b[2J\x1b]0;x\x07 \x00 \u202e \u2066 \x9b31m <script>alert(1)</script> [red]x[/red] %0A\n::error file=a::x\n##[e]"


def diagnosis() -> Diagnosis:
    site = SourceLine(f"/home/{HOSTILE}.py", 3, HOSTILE)
    finding = Finding(
        title=HOSTILE,
        ranks=(0,),
        place=site,
        places=(Place(site, (0,), HOSTILE),),
        why=HOSTILE,
        evidence={HOSTILE: HOSTILE},
        severity=ERROR,
        code="DD110",
        slug="rank-died",
    )
    return Diagnosis(Job(argv=(HOSTILE,), launcher=HOSTILE), (finding,), examined=("DD110",), world_size=1)


def seen(document: str) -> str:
    """The characters that would act instead of being seen."""
    return "".join(c for c in document if (c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f" or c in "\u202e\u2066")


def test_text_shows_what_would_act() -> None:
    page = printable(text.render(diagnosis()))

    assert seen(page) == ""
    assert "\\x1b[2J" in page
    assert [line for line in page.splitlines() if line.lstrip().startswith(("::", "##["))] == []


def test_one_finding_is_one_workflow_command() -> None:
    page = github.render(diagnosis())

    assert seen(page) == ""
    assert len(page.splitlines()) == 1


def test_a_page_holds_no_element_of_the_job_and_runs_nothing() -> None:
    page = html.render(diagnosis())

    assert seen(page) == ""
    assert [line for line in page.splitlines() if line.lstrip().startswith(("::", "##["))] == []
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_documents_for_programs_still_parse() -> None:
    assert json.loads(json_report.render(diagnosis()))["findings"][0]["title"] == HOSTILE
    assert json.loads(sarif.render(diagnosis()))["runs"][0]["results"]
    assert ElementTree.fromstring(junit.render(diagnosis())).get("failures") == "1"


@pytest.mark.parametrize("words", ["a b\tc\nd", "naïve 中文 🙂", "::: and a::b", "x ##[y"])
def test_ordinary_words_stay_as_they_are(words: str) -> None:
    assert printable(words) == (words if not words.startswith("::") else "\\x3a" + words[1:])
