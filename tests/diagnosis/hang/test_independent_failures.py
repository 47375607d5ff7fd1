"""What failed by itself is told by itself: nobody is said to have failed because of somebody else without a sign of it."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.report.root_cause import brought_down
from distdoctor.testing import recording

CHECK = PLUGINS.checks["DD110"]


def test_two_ranks_that_raise_different_exceptions_are_two_findings() -> None:
    script = recording(ranks=2).collective("all_reduce", [8], site="train.py:41 train_step").step()
    script.raises(0, "ValueError: empty batch", site="train.py:33 load_batch")
    script.raises(1, "KeyError: 'labels'", site="train.py:35 load_batch")

    diagnosis = examine(script.finished(survivors="fail"), [CHECK])

    assert [(f.ranks, f.title) for f in diagnosis.findings] == [
        ((0,), "raised ValueError: empty batch"),
        ((1,), "raised KeyError: 'labels'"),
    ]
    assert "rank 1 raised a different error independently" in diagnosis.findings[0].why
    assert brought_down(diagnosis) == ()


def test_an_error_on_every_rank_is_one_for_all() -> None:
    script = recording(ranks=4)
    script.raises(range(4), "ModuleNotFoundError: No module named 'apex'", site="train.py:3 <module>")

    findings = examine(script.finished(survivors="fail"), [CHECK]).findings

    assert [sorted(finding.ranks) for finding in findings] == [[0, 1, 2, 3]]
    assert "ranks 0-3 failed the same way, each on its own" in findings[0].prescriptions[0].change
    assert "consequence" not in findings[0].prescriptions[0].change


def test_a_prompt_that_is_quit_is_the_line_that_opens_it_and_no_error_of_the_line_after_it() -> None:
    source = "import pdb\n\nfor step in range(9):\n    pdb.set_trace()\n    optimizer.zero_grad()\n"
    for quit_at in (5, 4):
        script = recording(ranks=2).source("train.py", source)
        script.raises(1, "BdbQuit", site=f"train.py:{quit_at} <module>")

        (finding,) = examine(script.finished(survivors="fail"), [CHECK]).findings

        assert (finding.ranks, finding.place.line) == ((1,), 4)
        assert finding.title == "was quit at a prompt of pdb (BdbQuit)"
        assert finding.prescriptions[0].change.startswith("remove the breakpoint at train.py:4")
