"""A finding is accepted by its code or its slug, in upper or lower case, on the line or by `--ignore`."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import Finding
from distdoctor.launch.suppressions import suppress
from distdoctor.recording.recording import Job, SourceLine

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


def test_another_code_accepts_nothing() -> None:
    assert suppress(FOUND, {"train.py": "loop()  # distdoctor: ignore[DD302]"}, ["DD30"]).findings == FOUND.findings
