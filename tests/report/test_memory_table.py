"""The verdict on memory: its first line is the answer, and every number in it was measured."""

from __future__ import annotations

import pytest
from sick import PLUGINS, diagnosis_of, own

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.trace.layout import Phase
from distdoctor.report import memory_table
from distdoctor.testing.memory import MIB, MemoryJob, memory_job

CHECKS = PLUGINS.checks


def job() -> MemoryJob:
    sizes = {"parameters": 100 * MIB, "gradients": 100 * MIB, "state": 200 * MIB}
    made = memory_job(2).trains(1, rss=300 * MIB).trains(40, rss=lambda rank, step: (700 + 50 * rank) * MIB, **sizes)  # type: ignore[arg-type]
    modules = {
        "body.0": (60 * MIB, "Linear", "model.py:12 forward"),
        "head": (20 * MIB, "Linear", "model.py:14 forward"),
    }
    phases = {Phase.FORWARD: 720 * MIB, Phase.BACKWARD: 790 * MIB, Phase.OPTIMIZER: 760 * MIB}
    return made.keeps(3, modules).peaks(3, phases)


def test_the_first_line_says_who_needs_most_and_whether_it_fits() -> None:
    recording = job().recording()

    assert memory_table.render(recording).splitlines()[0] == (
        "rank 0 needs most: 790 MiB of resident memory; nothing was found to grow"
    )
    assert memory_table.render(recording, 1024 * MIB).splitlines()[0] == (
        "rank 0 needs most: 790 MiB of resident memory, fits into 1 GiB: 234 MiB to spare; nothing was found to grow"
    )
    assert memory_table.fits(recording, 1024 * MIB) is True


def test_what_does_not_fit_comes_with_sums_of_what_would_be_saved() -> None:
    text = memory_table.render(job().recording(), 600 * MIB)

    assert "does NOT fit into 600 MiB: 190 MiB too much" in text.splitlines()[0]
    assert text.splitlines()[-4:] == [
        "to save 190 MiB:",
        "  fully_shard over 2 ranks: about 200 MiB (of parameters, gradients, optimizer state)",
        "  half the micro-batch: about 40 MiB (half of what is kept for backward)",
        "  recompute activations: up to 20 MiB (all but the largest module's 60 MiB)",
    ]
    assert memory_table.fits(job().recording(), 600 * MIB) is False


def test_the_columns_add_up_to_the_peak() -> None:
    lines = memory_table.render(job().recording()).splitlines()

    assert lines[2].split()[-1] == "other"
    assert lines[3].split() == [
        "0",
        "790",
        "MiB",
        "100",
        "MiB",
        "100",
        "MiB",
        "200",
        "MiB",
        "80",
        "MiB",
        "300",
        "MiB",
        "10",
        "MiB",
    ]
    assert "  60 MiB  body.0 (Linear)  model.py:12 forward" in "\n".join(lines)


def test_what_grows_is_named_in_the_answer_and_stands_below_it_as_its_check_says_it() -> None:
    looks = {step: {"nodes": 9 * step, "old_nodes": 9 * (step - 3), "saved": step * MIB} for step in (3, 6, 9, 12)}
    recording = job().holds("total", "train.py:5 train", looks, kind="Tensor").recording()
    (finding,) = examine(recording, [CHECKS["DD401"]]).findings

    lines = memory_table.render(recording, findings=[finding]).splitlines()

    assert lines[0].endswith(f"; {finding.title}, train.py:5 train")
    assert lines[1] == f"  grows   {finding.title}, train.py:5 train, ranks 0-1"


@pytest.mark.parametrize("name", ["sick", "healthy"])
@pytest.mark.parametrize("code", [code for code in CHECKS if code.startswith("DD4")])
def test_the_table_says_that_something_grows_exactly_where_a_check_does(code: str, name: str) -> None:
    recording, findings = own(code, name), diagnosis_of(code, name).findings
    grows = {one.title for one in findings if one.slug == "growing-memory"}

    text = memory_table.render(recording, findings=findings)

    told = {one.title for one in findings if f"  grows   {one.title}" in text}
    assert grows <= told
    assert ("nothing was found to grow" in text) == (not told and "no verdict" not in text)
