"""A finding is accepted by its code or its slug, in upper or lower case, on the line or by `--ignore`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from launching import Finished
from sick import fresh_diagnosis_of, own

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import Finding, Place
from distdoctor.launch.suppressions import suppress
from distdoctor.recording.recording import Job, Recording, SourceLine
from distdoctor.testing.samples import sampled_job

COMMENT = "loop()  # distdoctor: ignore[{}] -- on purpose"
FOUND = Diagnosis(
    job=Job(),
    findings=(Finding("a title", code="DD301", slug="missing-set-epoch", place=SourceLine("train.py", 1, "f")),),
)


@pytest.mark.parametrize("name", ["DD301", "dd301", "missing-set-epoch", "Missing-Set-Epoch", " dd301 "])
def test_by_the_option_and_by_a_comment(name: str) -> None:
    by_option = suppress(FOUND, {}, [name])
    by_comment = suppress(FOUND, {"train.py": f"loop()  # distdoctor: ignore[DD999, {name}] -- on purpose"})

    assert not by_option.findings
    assert not by_comment.findings


def test_by_a_comment_on_any_line_that_it_shows() -> None:
    made = Place(SourceLine("train.py", 2, "main"), (0, 1), "the loader is created")
    found = replace(FOUND, findings=(replace(FOUND.findings[0], places=(made,)),))

    assert not suppress(found, {"train.py": f"loop()\n{COMMENT.format('DD301')}\n"}).findings
    assert suppress(found, {"train.py": f"loop()\nmake()\n{COMMENT.format('DD301')}\n"}).findings


def test_another_code_accepts_nothing() -> None:
    assert suppress(FOUND, {"train.py": "loop()  # distdoctor: ignore[DD302]"}, ["DD30"]).findings == FOUND.findings


def commented(*names: str, code: int = 0) -> Recording:
    """A whole job of two ranks in which set_epoch is missing, with an ignore comment in another file."""
    source = f"{COMMENT.format(', '.join(names))}\n"
    recording = sampled_job(ranks=2, length=100).train(epoch=0).train(epoch=0).recording(sources={"other.py": source})
    return replace(recording, job=replace(recording.job, exit_code=code))


def unused(recording: Recording) -> list[str]:
    found = fresh_diagnosis_of(recording).findings
    return [f"{one.place.path}:{one.place.line} {one.title}" for one in found if one.code == "DD901"]


def test_a_name_that_no_check_has_is_told_as_unused() -> None:
    assert unused(commented("DD3O1", "dd301")) == ["other.py:1 a comment accepts DD3O1, that no check has"]


def test_an_ignore_that_accepts_nothing_is_told_where_the_whole_job_was_seen() -> None:
    """A code that lint has as well may be there for lint, one of a check that could not look for the next run."""
    names = ("DD307", "DD301", "DD412")

    assert unused(commented(*names)) == ["other.py:1 a comment accepts DD307, that was not found there"]
    assert unused(commented(*names, code=1)) == []


def test_an_ignore_that_accepts_a_finding_is_in_use() -> None:
    sick = own("DD307")
    sick = replace(sick, job=replace(sick.job, exit_code=0))
    place = next(one.place for one in fresh_diagnosis_of(sick).findings if one.code == "DD307")
    comment = "\n" * (place.line - 1) + COMMENT.format("DD307")

    assert place
    assert unused(replace(sick, sources={place.path: comment})) == []
    assert unused(replace(sick, sources={place.path: "\n" + comment})) != []


def test_what_a_string_says_is_no_comment() -> None:
    text = f"print({COMMENT.format('DD999')!r})\n"

    assert unused(replace(commented(), sources={"other.py": text})) == []


@pytest.mark.job
def test_a_misspelt_ignore_in_a_script_is_told_where_the_script_ran(
    distdoctor: Callable[..., Finished], script: Callable[..., Path]
) -> None:
    script("dist.barrier()  # distdoctor: ignore[DD1O2, mismatched-shape] -- on purpose")

    done = distdoctor("run", "--nproc", 2, "train.py")

    told = done.out + done.err
    assert done.code == 0, told
    assert "DD901 note" in told
    assert "a comment accepts DD1O2, that no check has" in told
    assert "a comment accepts mismatched-shape, that was not found there" in told
