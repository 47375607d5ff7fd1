"""What users read about every illness, pinned: a change of wording shows up in review as a change of these files.

Made from each check's own `sick()` recording. After a change that is meant:
REWRITE_GOLDEN=1 python -m pytest tests/reports
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from sick import PLUGINS, diagnosis_of

from distdoctor.diagnosis.check import Check
from distdoctor.report import json_report as as_json
from distdoctor.report import text as as_text

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = Draft202012Validator(json.loads(as_json.schema()))
REWRITE = bool(os.environ.get("REWRITE_GOLDEN"))


@pytest.mark.parametrize("check", PLUGINS.checks.values(), ids=PLUGINS.checks.keys())
@pytest.mark.parametrize("form", ["txt", "json"])
def test_the_report_on_the_sick_recording_reads_as_it_did(check: Check, form: str) -> None:
    diagnosis = diagnosis_of(check.code)
    report = as_text.render(diagnosis) if form == "txt" else findings_of(as_json.render(diagnosis))
    file = GOLDEN / f"{check.code}-{check.slug}.{form}"

    if REWRITE:
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(report, "utf-8")
    assert report == file.read_text("utf-8")


def findings_of(document: str) -> str:
    """What the JSON says about the illness; which checks ran changes with every check that is added, and is left out."""
    SCHEMA.validate(json.loads(document))
    return json.dumps(json.loads(document)["findings"], indent=2, ensure_ascii=False) + "\n"


def test_no_report_is_kept_of_a_check_that_is_gone() -> None:
    names = {f"{check.code}-{check.slug}" for check in PLUGINS.checks.values()}
    gone = [file for file in GOLDEN.iterdir() if file.stem not in names]

    if REWRITE:
        for file in gone:
            file.unlink()
    else:
        assert [file.name for file in gone] == []
