"""A rank that failed for a reason of its own is told, also where its words are those of a victim or of Ctrl-C."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, POSSIBLE
from distdoctor.recording.recording import RankEnd
from distdoctor.testing.script import recording

DIED = [check for check in PLUGINS.checks.values() if check.code == "DD110"]
HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]


@pytest.mark.parametrize("words", ["KeyboardInterrupt: ", "BrokenPipeError: [Errno 32] Broken pipe"])
def test_a_rank_that_alone_was_interrupted_or_lost_its_reader_is_named(words: str) -> None:
    script = recording(ranks=2)
    for step in range(4):
        if step == 2:
            script.raises(1, words, site="train.py:33 log")
        script.collective("all_reduce", [8], site="train.py:41 train_step").step()

    (finding,) = examine(script.finished(survivors="fail"), DIED).findings

    assert (finding.ranks, finding.confidence, finding.place.line) == ((1,), CERTAIN, 33)
    assert finding.title.startswith(f"raised {words.partition(':')[0]}")


def test_a_rank_that_gave_up_waiting_for_a_key_of_the_store_lost_nobody() -> None:
    """Rank 0 still computes when the patience of rank 1 is over: it was late, or never sets that key."""
    script = recording(ranks=2).collective("all_reduce", [8], site="train.py:41 train").step().stays(0)
    script.raises(1, "DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//ready", site="train.py:16 fetch")

    (finding,) = examine(script.finished(), HANGS).findings

    assert (finding.code, finding.ranks, finding.confidence, finding.place.line) == ("DD129", (0,), POSSIBLE, 16)
    assert finding.title.startswith("had not come yet when rank 1 gave up waiting: DistStoreError: wait timeout")


@pytest.mark.parametrize(("launcher", "accused"), [("python", False), ("torchrun", True)])
def test_the_exit_code_of_an_idle_rank_of_another_launcher_proves_nothing_while_the_job_runs(
    launcher: str, accused: bool
) -> None:
    """Its parent may have ended it when its work was done; torchrun's ranks are children of ours."""
    read = (
        recording(ranks=2).collective("all_reduce", [8], site="train.py:41 train").step().stays(0).stays(1).finished()
    )
    ends = {0: RankEnd(1, at_ns=1)}
    job = replace(read.job, launcher=launcher, running=True, exit_code=None, ends=ends)

    assert bool(examine(replace(read, job=job), DIED).findings) is accused


def test_of_a_rank_that_left_at_once_no_unknown_line_is_shown() -> None:
    script = recording(ranks=2).exits(1).collective("all_reduce", [8], site="train.py:41 train_step")

    (finding,) = examine(script.live(), HANGS).findings

    assert (finding.code, finding.ranks) == ("DD109", (1,))
    assert all(place.site for place in finding.places)
    assert finding.prescriptions[0].change.startswith("keep rank 1 going until every rank has finished")
