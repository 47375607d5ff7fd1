"""What people and programs read: complete, short at any size, the root cause first."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import sick

from distdoctor.diagnosis.diagnosis import Diagnosis, NotExamined
from distdoctor.diagnosis.finding import ERROR, LIKELY, NOTE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.recording.recording import Job, RankEnd, Recording, SourceLine
from distdoctor.report import github, html, json_report, junit, markdown, sarif, text
from distdoctor.report.root_cause import brought_down, root_cause
from distdoctor.report.verdict import summary

HERE = SourceLine("/home/me/train.py", 57, "maybe_save")
THERE = SourceLine("/home/me/train.py", 41, "train_step")
SKIPPED = Finding(
    title="skipped all_reduce #128 and went on to barrier #3",
    ranks=(3,),
    place=HERE,
    places=(Place(THERE, (0, 1, 2), "all_reduce #128 [25600] float32, waits 12 s"), Place(HERE, (3,), "barrier #1")),
    why="inside `if loss < best:`, which depends on the loss of this rank alone",
    evidence={"waiting_seconds": 12.0},
    prescriptions=(Prescription("decide-once", change="broadcast the decision before line 56"),),
    severity=ERROR,
    code="DD101",
    slug="skipped-collective",
)
REMEDIES = {"decide-once": Remedy("decide-once", "Decide once for all ranks.", effect="no wait")}


def diagnosis_of(*findings: Finding, **job: Any) -> Diagnosis:
    return Diagnosis(Job(world_size=4, **job), findings, examined=("DD101",), remedies=REMEDIES, world_size=4)


def test_a_finding_reads_like_the_style_page() -> None:
    assert text.render(diagnosis_of(SKIPPED), base="/home/me") == (
        "DD101 error  rank 3  train.py:57 maybe_save  skipped all_reduce #128 and went on to barrier #3 (certain)\n"
        "  ranks 0-2  train.py:41 train_step  all_reduce #128 [25600] float32, waits 12 s\n"
        "  rank 3     train.py:57 maybe_save  barrier #1\n"
        "  why   inside `if loss < best:`, which depends on the loss of this rank alone\n"
        "  fix   broadcast the decision before line 56\n"
        "  more  distdoctor explain DD101\n"
    )


def test_numbers_stand_in_where_nobody_wrote_a_why() -> None:
    report = text.render(diagnosis_of(replace(SKIPPED, why="")), base="/home/me")

    assert "  why   waiting_seconds 12.0\n" in report


def test_a_diff_is_shown_line_by_line_under_what_it_does() -> None:
    diff = "-  if rank == 0:\n-      dist.barrier()\n+  dist.barrier()"

    report = text.render(diagnosis_of(replace(SKIPPED, prescriptions=(Prescription("decide-once", change=diff),))))

    assert "  fix   Decide once for all ranks.\n        -  if rank == 0:\n        -      dist.barrier()\n" in report


@pytest.mark.parametrize("world_size", [2, 1024])
@pytest.mark.parametrize("findings", [1, 3, 50])
def test_a_report_has_at_most_forty_lines(world_size: int, findings: int) -> None:
    long = replace(
        SKIPPED,
        why="because " * 200,
        places=tuple(Place(HERE, (rank,), "waits") for rank in range(world_size)),
        prescriptions=(Prescription("decide-once", change="\n".join(["+ line"] * 60)),) * 5,
    )
    ends = {rank: RankEnd(None, 15, ended_by_launcher=rank != 3) for rank in range(world_size)}
    others = [replace(long, code=f"DD2{number:02}", ranks=(number,)) for number in range(findings - 1)]
    diagnosis = Diagnosis(Job(ends=ends, exit_code=1), (long, *others), world_size=world_size, suppressed=(SKIPPED,))

    lines = text.render(diagnosis).splitlines()

    assert len(lines) <= 40
    assert lines[0].startswith("DD101 error")


def test_findings_that_find_no_room_are_counted_by_code() -> None:
    diagnosis = diagnosis_of(SKIPPED, *[replace(SKIPPED, code="DD303", ranks=(n,)) for n in range(60)])

    report = text.render(diagnosis)

    shown = len(re.findall(r"^DD303 ", report, re.MULTILINE))
    assert f"and DD303 x {60 - shown} (all of them: distdoctor report --output-format json)" in report


def test_what_followed_from_the_root_cause_is_one_line_below_it() -> None:
    ends = {rank: RankEnd(None, 15, True) for rank in (0, 1, 2)} | {3: RankEnd(1)}

    report = text.render(diagnosis_of(SKIPPED, exit_code=1, ends=ends))

    assert report.splitlines()[-1] == "  then  3 ranks ended because of it (ranks 0-2)"


def test_ranks_that_a_signal_from_outside_ended_did_not_end_because_of_the_finding() -> None:
    ends = {rank: RankEnd(None, 15, True) for rank in (0, 1, 2, 3)}

    report = text.render(diagnosis_of(SKIPPED, exit_code=1, ends=ends, interrupted=15))

    assert report.splitlines()[-1] == "  then  3 ranks ended by SIGTERM from outside (ranks 0-2)"


def test_a_failed_job_without_a_finding_still_names_who_failed_first() -> None:
    ends = {0: RankEnd(1, at_ns=20), 1: RankEnd(None, 9, at_ns=10)}

    assert text.render(diagnosis_of(exit_code=1, ends=ends)) == (
        "the job failed: rank 1 ended first, with SIGKILL; no check found out why\n"
        "  then  1 rank ended because of it (rank 0)\n"
    )


def test_a_failed_job_of_which_no_rank_was_recorded_is_not_said_to_have_been_looked_at() -> None:
    """`accelerate launch` on a machine without GPUs starts one process that is no rank."""
    job = Job(launcher="accelerate launch train.py", exit_code=1)

    said = text.render(replace(diagnosis_of(exit_code=1), job=job, recording=Recording(job, {})))

    assert said == "the job failed with exit code 1, and no rank was recorded that could tell why\n"


def test_a_job_that_was_ended_from_outside_is_no_failure_that_nobody_can_explain() -> None:
    ends = {rank: RankEnd(None, 15, ended_by_launcher=True) for rank in range(2)}

    assert text.render(diagnosis_of(exit_code=1, ends=ends, interrupted=15)).startswith(
        "the job was ended from outside by SIGTERM (a time limit, preemption, scancel); no check found anything until then\n"
    )


def test_no_finding_is_health_only_where_something_was_examined() -> None:
    examined = diagnosis_of(exit_code=0)

    assert text.render(examined) == "healthy: 1 check on 4 ranks\n"
    assert text.render(replace(examined, examined=())).startswith("nothing was examined")


def test_health_is_not_said_where_a_check_that_matters_could_not_look() -> None:
    blind = tuple(NotExamined(f"DD80{n}", "x", "not recorded: gradients") for n in range(3))
    asked_for_nothing = NotExamined("DD213", "y", "no budget was named", applies=False)
    diagnosis = replace(diagnosis_of(exit_code=0), not_examined=(*blind, asked_for_nothing))

    assert text.render(diagnosis) == "nothing found; 1 of 4 checks could look; not recorded: gradients (3)\n"
    assert not diagnosis.healthy
    assert replace(diagnosis, not_examined=(asked_for_nothing,)).healthy


def test_the_last_line_counts_the_findings() -> None:
    notes = [replace(SKIPPED, code="DD303", severity=NOTE, ranks=(n,)) for n in range(2)]

    assert summary(diagnosis_of(SKIPPED, *notes)) == "1 error (DD101), 2 notes (DD303)"
    assert summary(diagnosis_of(exit_code=0)) == "healthy"
    assert summary(replace(diagnosis_of(exit_code=0), suppressed=(SKIPPED,))) == "nothing else found; 1 suppressed"


def test_a_terminal_is_wrapped_and_what_it_has_shown_is_not_repeated_in_full() -> None:
    diagnosis = diagnosis_of(SKIPPED)

    assert max(map(len, text.render(diagnosis, width=60).splitlines())) <= 60
    assert max(map(len, text.render(replace(diagnosis, ended_by_distdoctor=True), width=40).splitlines())) <= 40
    assert text.render(diagnosis, known=[SKIPPED]).splitlines() == text.render(diagnosis).splitlines()[:1]


def test_what_differs_from_the_finding_of_the_running_job_in_its_counts_alone_is_not_repeated_in_full() -> None:
    told = replace(SKIPPED, why="the first 288 draws are equal", evidence={"draws": 288}, at_ns=1)
    at_the_end = replace(SKIPPED, why="the first 704 draws are equal", evidence={"draws": 704}, at_ns=2)

    assert len(text.render(diagnosis_of(at_the_end), known=[told]).splitlines()) == 1
    waits, longer = (replace(told, title=f"has been at `lock.acquire()` for {seconds} s") for seconds in (13, 566))
    assert len(text.render(diagnosis_of(longer), known=[waits]).splitlines()) == 1
    for news in (
        replace(at_the_end, ranks=(1, 2)),
        replace(at_the_end, places=(*SKIPPED.places, Place(SourceLine("other.py", 3, "main"), (0,), "waits"))),
        replace(at_the_end, prescriptions=()),
    ):
        assert len(text.render(diagnosis_of(news), known=[told]).splitlines()) > 1


@pytest.mark.parametrize("width", range(60, 111))
def test_a_command_is_not_broken_at_its_hyphens(width: int) -> None:
    why = "to see which of the layers differs first, run `distdoctor check-grads --against single` on the same script"

    lines = text.render(diagnosis_of(replace(SKIPPED, why=why)), width=width).splitlines()

    assert [line for line in lines if line.endswith("-")] == []


def test_the_line_of_source_is_shown_between_its_neighbours() -> None:
    source = "\n" * 55 + "if loss < best:\n    dist.barrier()\n    save()\n"
    recording = Recording(Job(), {}, sources={HERE.path: source})

    report = text.render(replace(diagnosis_of(SKIPPED), recording=recording))

    assert "    56 | if loss < best:\n  > 57 |     dist.barrier()\n    58 |     save()\n" in report


def test_an_end_that_distdoctor_made_is_nobodys_cause() -> None:
    ends = {rank: RankEnd(None, 15, ended_by_launcher=True) for rank in range(4)}
    diagnosis = replace(diagnosis_of(SKIPPED, exit_code=1, ends=ends), ended_by_distdoctor=True)

    cause = root_cause(diagnosis)

    assert cause is not None
    assert (cause.rank, cause.signal, cause.words) == (3, 0, "ended by distdoctor")
    assert "then  distdoctor ended the job, 3 ranks that waited with it (ranks 0-2)" in text.render(diagnosis)


def test_the_finding_names_the_root_cause_even_where_an_innocent_rank_died_first() -> None:
    ends = {0: RankEnd(None, 6, at_ns=10), 3: RankEnd(1, at_ns=20)}
    diagnosis = diagnosis_of(SKIPPED, exit_code=1, ends=ends)

    cause = root_cause(diagnosis)

    assert cause is not None
    assert (cause.rank, cause.exit_code, cause.signal) == (3, 1, 0)
    assert brought_down(diagnosis) == (0,)


def test_what_held_up_nobody_has_ended_nobody() -> None:
    not_finite = replace(SKIPPED, code="DD801", area="numerics", stalls=None)
    went_on = diagnosis_of(not_finite, exit_code=1, ends={0: RankEnd(None, 6), 3: RankEnd(0)})
    failed_too = diagnosis_of(not_finite, exit_code=1, ends={0: RankEnd(None, 6), 3: RankEnd(1)})

    causes = [root_cause(one) for one in (went_on, failed_too)]

    assert [(cause.rank, cause.words) for cause in causes if cause] == [(0, "SIGABRT"), (3, "exit code 1")]
    assert [brought_down(one) for one in (went_on, failed_too)] == [(), (0,)]


def test_of_two_sides_of_which_nothing_tells_the_wrong_one_no_rank_is_the_root_cause() -> None:
    differs = replace(SKIPPED, code="DD201", area="replicas", stalls=None, undecided=True)

    assert root_cause(diagnosis_of(differs, exit_code=0, ends={0: RankEnd(0), 3: RankEnd(0)})) is None


def test_a_signal_on_the_way_out_after_an_exception_is_no_cause() -> None:
    raised = replace(SKIPPED, evidence={"exception": "ValueError: the batch is empty\nin row 3"})

    cause = root_cause(diagnosis_of(raised, exit_code=1, ends={3: RankEnd(None, 6)}))

    assert cause is not None
    assert (cause.rank, cause.exit_code, cause.signal, cause.words) == (3, None, 0, "ValueError: the batch is empty")


def test_a_warning_blames_nobody_for_the_end_of_the_job() -> None:
    ends = {0: RankEnd(7, at_ns=10)}
    diagnosis = diagnosis_of(replace(SKIPPED, severity=WARNING), exit_code=1, ends=ends)

    cause = root_cause(diagnosis)

    assert cause is not None
    assert (cause.rank, cause.words) == (0, "exit code 7")


def test_a_healthy_job_has_no_root_cause() -> None:
    assert root_cause(diagnosis_of(exit_code=0, ends={0: RankEnd(0)})) is None


def test_the_json_report_holds_the_whole_finding() -> None:
    diagnosis = replace(
        diagnosis_of(SKIPPED, exit_code=1), not_examined=(NotExamined("DD301", "missing-set-epoch", "why"),)
    )

    document = json.loads(json_report.render(diagnosis))

    assert document["schema_version"] == json_report.SCHEMA_VERSION == 2
    assert document["job"]["root_cause"] == {"rank": 3, "exit_code": None, "signal": None}
    assert document["not_examined"] == [
        {"code": "DD301", "slug": "missing-set-epoch", "reason": "why", "applies": True}
    ]
    assert document["findings"] == [
        {
            "code": "DD101",
            "slug": "skipped-collective",
            "severity": "error",
            "confidence": "certain",
            "ranks": [3],
            "title": "skipped all_reduce #128 and went on to barrier #3",
            "why": "inside `if loss < best:`, which depends on the loss of this rank alone",
            "place": {"path": "/home/me/train.py", "line": 57, "function": "maybe_save"},
            "places": [
                {
                    "path": "/home/me/train.py",
                    "line": 41,
                    "function": "train_step",
                    "ranks": [0, 1, 2],
                    "role": "all_reduce #128 [25600] float32, waits 12 s",
                },
                {
                    "path": "/home/me/train.py",
                    "line": 57,
                    "function": "maybe_save",
                    "ranks": [3],
                    "role": "barrier #1",
                },
            ],
            "evidence": {"waiting_seconds": 12.0},
            "remedies": [
                {
                    "slug": "decide-once",
                    "what": "Decide once for all ranks.",
                    "change": "broadcast the decision before line 56",
                    "effect": "no wait",
                    "safety": "changes no result",
                    "verified": False,
                    "patch": None,
                    "patch_folder": "",
                    "patch_digests": {},
                }
            ],
        }
    ]


def test_evidence_of_any_kind_becomes_json() -> None:
    import numpy as np

    odd = {"counts": {0: np.int64(3)}, "ranks": (1, 2), "set": frozenset({1}), "site": HERE, "ratio": np.float32(0.5)}

    document = json.loads(json_report.render(diagnosis_of(replace(SKIPPED, evidence=odd, confidence=LIKELY))))

    evidence = document["findings"][0]["evidence"]
    assert evidence["counts"] == {"0": 3}
    assert evidence["ranks"] == [1, 2]
    assert evidence["set"] == [1]
    assert evidence["ratio"] == 0.5


def test_what_remedies_would_take_off_is_in_the_json_report_too() -> None:
    document = json.loads(json_report.render(sick.diagnosis_of("DD407")))
    (table,) = (one for one in document["tables"] if one["name"] == "memory")

    assert table["notes"] == [
        "fully-shard, rank 0: fully_shard over 2 ranks: about 3.91 GiB (of parameters, gradients, optimizer state)"
    ]


def test_every_report_fits_the_schema_that_is_printed() -> None:
    schema = json.loads(json_report.schema())
    document = json_report.render(diagnosis_of(SKIPPED, exit_code=1))

    assert schema["$ref"] == "#/$defs/ReportJson"
    about = schema["$defs"]["ReportJson"]
    assert set(about["required"]) <= set(json.loads(document)) <= set(about["properties"])
    assert (schema["$id"], schema["$schema"][-14:]) == ("urn:distdoctor:report:2", "2020-12/schema")
    assert msgspec.json.decode(document, type=json_report.ReportJson).findings[0].code == "DD101"


@pytest.mark.parametrize("code", ["DD101", "DD116", "DD202", "DD301", "DD405", "DD504", "DD801"])
def test_every_format_gives_the_same_verdict(code: str) -> None:
    found = sick.diagnosis_of(code)
    finding = found.findings[0]
    (first,) = text.headline(finding)

    (junit_failed, *_) = ElementTree.fromstring(junit.render(found)).iter("failure")
    result = json.loads(sarif.render(found))["runs"][0]["results"][0]
    document = json.loads(json_report.render(found))["findings"][0]
    page = re.search(r'<h1 id="verdict">(.*?)</h1>', html.render(found), re.DOTALL)
    assert page is not None

    assert text.render(found).partition("\n")[0] == first
    assert junit_failed.get("message") == first
    assert result["message"]["text"].partition("\n")[0] == first
    assert github.render(found).partition("::")[2].partition("::")[2].partition("%0A")[0] == first.replace("%", "%25")
    assert first in markdown.render(found)
    assert unescape(re.sub("</?code>", "`", page[1])).endswith(finding.title)
    assert (document["code"], document["title"], document["ranks"]) == (code, finding.title, list(finding.ranks))
    assert document["confidence"] == str(finding.confidence) == result["properties"]["confidence"]


def test_a_failed_job_of_which_only_notes_are_told_does_not_read_as_a_sound_one() -> None:
    note = replace(SKIPPED, code="DD804", severity=NOTE)
    warning = "the job failed with exit code 1, and no check found out why; 1 note (DD804)"

    assert summary(diagnosis_of(note, exit_code=1)) == warning
    assert summary(diagnosis_of(note, exit_code=0)) == "1 note (DD804)"
    assert summary(diagnosis_of(SKIPPED, note, exit_code=1)) == "1 error (DD101), 1 note (DD804)"
