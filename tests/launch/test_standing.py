"""What ends a job is proof that ranks wait for ever; what only may be a hang is followed, and taken back when they move."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from distdoctor import plugins
from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, Finding, Stalls
from distdoctor.launch import watch
from distdoctor.launch.job_state import JobState
from distdoctor.launch.live_findings import LiveFindings
from distdoctor.launch.run_options import RunOptions
from distdoctor.launch.standing import StandingFindings
from distdoctor.launch.watch import OtherHostsSeen, Watcher
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.recording import Job, Recording
from distdoctor.testing import Script
from distdoctor.testing.stacks import frame, in_collective, looked_at, rank
from distdoctor_checks.hang import (
    cross_group_deadlock,
    mismatched_reduce_op,
    missing_rank_at_start,
    rank_left_early,
    skipped_collective,
    slow_rank,
    stopped_process,
    stuck_in_data,
    stuck_in_user_code,
)

PLUGINS = plugins.load()
HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]


def found(recording: Recording) -> list[Finding]:
    return list(examine(recording, HANGS, live=True).findings)


@pytest.mark.parametrize("illness", [skipped_collective, cross_group_deadlock, rank_left_early])
def test_ranks_that_wait_for_what_cannot_come_are_a_proven_standstill(illness: object) -> None:
    assert found(illness.sick())[0].stalls is Stalls.FOREVER  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "illness", [stuck_in_user_code, stuck_in_data, stopped_process, slow_rank, missing_rank_at_start]
)
def test_a_rank_that_may_only_be_late_is_no_proof(illness: object) -> None:
    assert {finding.stalls for finding in found(illness.sick())} == {Stalls.MAYBE}  # type: ignore[attr-defined]


def test_another_reduction_holds_nobody() -> None:
    assert found(mismatched_reduce_op.sick())[0].stalls is Stalls.NO


def test_no_check_can_claim_more_than_it_declares() -> None:
    slow = PLUGINS.checks["DD123"]
    bold = Check(**{name: getattr(slow, name) for name in slow.__dataclass_fields__})
    bold = replace(bold, examine=lambda *facts: [Finding("stuck", stalls=Stalls.FOREVER)], facts=())

    assert bold.look(slow_rank.sick())[0].stalls is Stalls.MAYBE


def finding(stalls: Stalls, *ranks: int) -> Finding:
    confidence = CERTAIN if stalls is Stalls.FOREVER else LIKELY
    return Finding(
        "waits",
        ranks=ranks,
        code="DD199",
        confidence=confidence,
        severity=PLUGINS.checks["DD116"].severity,
        stalls=stalls,
    )


def test_what_stands_is_withdrawn_when_its_own_ranks_move_and_not_when_others_do() -> None:
    standing = StandingFindings()
    standing.polled([finding(Stalls.MAYBE, 1)], with_stacks=True)

    assert standing.moved([0]) == []
    ((withdrawn, _),) = standing.moved([1])

    assert withdrawn.ranks == (1,)
    assert standing.open() == ()


def test_what_a_look_does_not_bring_any_more_is_withdrawn_with_the_next_sign_of_life_and_stands_again_where_it_returns() -> (
    None
):
    standing = StandingFindings()
    standing.polled([finding(Stalls.MAYBE, 1)], with_stacks=True)
    standing.polled([], with_stacks=True)

    assert (standing.open(), [one.ranks for one in standing.not_taken_back()]) == ((), [(1,)])
    assert [one.ranks for one, _ in standing.moved([1])] == [(1,)]
    assert standing.not_taken_back() == ()

    standing.polled([finding(Stalls.MAYBE, 1)], with_stacks=True)
    standing.polled([], with_stacks=True)
    standing.polled([finding(Stalls.MAYBE, 1)], with_stacks=True)
    assert len(standing.open()) == len(standing.not_taken_back()) == 1


def test_that_somebody_waits_is_no_news_while_the_reason_stands() -> None:
    standing = StandingFindings(symptoms=frozenset({"DD123"}))
    slow = replace(finding(Stalls.MAYBE, 1), code="DD123")
    standing.polled([slow], with_stacks=False)
    assert not standing.explains(slow)

    standing.polled([finding(Stalls.MAYBE, 1)], with_stacks=True)

    assert standing.explains(slow)
    assert not standing.explains(replace(slow, ranks=(0, 1)))
    assert not standing.explains(replace(slow, ranks=(0,)))
    standing.polled([replace(finding(Stalls.MAYBE, 1), delays=(0,))], with_stacks=True)
    assert standing.explains(replace(slow, ranks=(0,)))
    assert not standing.explains(finding(Stalls.MAYBE, 1))
    for one in standing.by_key.values():
        one.next_update = 0.0
    assert [again.code for again, _ in standing.updates()] == ["DD199"]
    standing.moved([1])
    assert not standing.explains(slow)


def test_a_standstill_is_proven_by_two_polls_between_which_nobody_moves() -> None:
    standing = StandingFindings()
    standing.polled([finding(Stalls.FOREVER, 1)], with_stacks=False)
    assert standing.proven() == []
    standing.moved([0])
    standing.polled([finding(Stalls.FOREVER, 1)], with_stacks=False)
    assert standing.proven() == []
    standing.polled([finding(Stalls.FOREVER, 1)], with_stacks=False)

    assert len(standing.proven()) == 1
    assert standing.moved([1]) == []  # what is proven is never taken back


@pytest.mark.parametrize("raises", [True, False])
def test_a_rank_of_another_host_that_has_raised_is_left_to_its_launcher_to_end_or_start_again(
    raises: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(4)
    for _ in range(5):
        script.collective("all_reduce", [8], site="train.py:9 step").step()
    if raises:
        script.raises(3)
        script.collective("all_reduce", [8], only=(0, 1, 2), site="train.py:9 step")
    else:
        script.collective("all_reduce", [8], site="train.py:9 step").skipped_by(3)
        script.collective("barrier", site="train.py:11 save")
    whole = script.live(silent_for=2)
    whole = replace(whole, job=replace(whole.job, ends={}))  # its process is still on its way out
    here = replace(whole, ranks={rank: log for rank, log in whole.ranks.items() if rank < 2})
    monkeypatch.setattr(watch, "open_run", lambda folder, sources, ranks: here)
    hung: list[bool] = []
    watcher = Watcher(
        tmp_path, lambda: here.job, HANGS, PLUGINS.remedies, tell=lambda finding, diagnosis: None,
        hung=lambda diagnosis, proven: hung.append(proven), hosts=OtherHostsSeen(seen=lambda own: replace(whole, job=own.job)),
    )  # fmt: skip

    for _ in range(4):
        watcher._resting()

    assert hung == ([] if raises else [True])


def test_a_rank_whose_trace_is_not_whole_yet_is_met_with_a_later_look(tmp_path: Path) -> None:
    here = Script(2).collective("all_reduce", [8], site="train.py:9 step").step().live(silent_for=2)
    (tmp_path / "rank-00000.a0.trace").write_bytes(bytes(1 << 16))
    asked: list[int] = []

    def new_trace(rank: int, path: Path) -> bool:
        asked.append(rank)
        return len(asked) == 2

    watcher = Watcher(
        tmp_path, lambda: here.job, HANGS, PLUGINS.remedies, tell=lambda finding, diagnosis: None,
        hung=lambda diagnosis, proven: None, new_trace=new_trace,
    )  # fmt: skip
    for _ in range(4):
        watcher._ranks_that_moved()

    assert asked == [0, 0]


def read_as_standing(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """What every look at the traces gives: rank 1 has not come to its sixth call for 40 s. Processes are looked at in between."""
    script = Script(2)
    for _ in range(5):
        script.collective("all_reduce", [8], site="train.py:9 step").step()
    here = script.stays(1).collective("all_reduce", [8], site="train.py:9 step").live(silent_for=40)
    monkeypatch.setattr(watch, "open_run", lambda folder, sources, ranks: here)
    monkeypatch.setattr(watch, "closer_after", lambda looks: looks * 0.01)
    return here


@pytest.mark.parametrize("still", [9.0, 2.0])
def test_why_ranks_wait_is_looked_for_twice_before_it_is_told_that_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still: float
) -> None:
    """A process that ran 9 s ago is not called stuck yet, and is with the next look; of one that ran lately nobody knows why."""
    here = read_as_standing(monkeypatch)
    looks: list[float] = []

    def closer() -> Recording:
        looks.append(still + 3.0 * len(looks) * (still > 5))
        return looked_at(in_collective(0, still=looks[-1]), rank(1, frame("train.py:57 save"), still=looks[-1]))

    told: list[str] = []
    watcher = Watcher(
        tmp_path, lambda: here.job, HANGS, PLUGINS.remedies, tell=lambda finding, diagnosis: told.append(finding.code),
        hung=lambda diagnosis, proven: None, closer=closer,
    )  # fmt: skip
    watcher._resting()
    assert told == []
    for _ in range(3):
        time.sleep(0.02)
        watcher._resting()

    assert told == (["DD116"] if still > 5 else ["DD123"])


def test_a_hang_that_is_left_alone_is_told_in_the_end_as_it_was_last_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = read_as_standing(monkeypatch)
    waited = iter((40.0, 60.0, 600.0))

    def closer() -> Recording:
        return looked_at(in_collective(0), rank(1, frame("train.py:57 save"), still=next(waited, 600.0)))

    watcher = Watcher(
        tmp_path, lambda: here.job, HANGS, PLUGINS.remedies, tell=lambda finding, diagnosis: None,
        hung=lambda diagnosis, proven: None, hang_after=0.0, closer=closer,
    )  # fmt: skip
    for _ in range(4):
        watcher._resting()
        time.sleep(0.02)

    assert watcher.is_hung
    (finding,) = (
        one for one in watcher.said(succeeded=False, interrupted=True, aborting=False).stood if one.code == "DD116"
    )
    assert "for 600 s" in finding.title


@pytest.mark.parametrize("asked", [False, True])
def test_what_stood_when_the_job_was_asked_to_end_stays_told_whatever_its_ranks_do_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """The signal may come while the processes are looked at: by then a worker is gone, and the ranks are in their handlers."""
    here = read_as_standing(monkeypatch)
    jobs = [here.job]
    at = iter(("train.py:57 save", "train.py:57 save", "data.py:3 close"))

    def closer() -> Recording:
        line = next(at, "data.py:3 close")
        if line == "data.py:3 close" and asked:
            jobs[0] = replace(here.job, interrupted=signal.SIGINT, interrupted_ns=time.monotonic_ns())
        still = 12.0 if line == "train.py:57 save" else 0.1
        return looked_at(in_collective(0, still=still), rank(1, frame(line), still=still))

    watcher = Watcher(
        tmp_path, lambda: jobs[0], HANGS, PLUGINS.remedies, tell=lambda finding, diagnosis: None,
        hung=lambda diagnosis, proven: None, closer=closer,
    )  # fmt: skip
    for _ in range(4):
        watcher._resting()
        time.sleep(0.02)
    watcher._took_back({0, 1})
    stood = watcher.said(succeeded=False, interrupted=asked, aborting=False).stood

    assert ("DD116" in {one.code for one in stood}) is asked


def test_traces_of_the_start_before_say_nothing_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the newest in the folder where the disk is full: no file there says that the ranks were started again."""
    script = Script(2)
    script.collective("all_reduce", [8], site="train.py:9 step").skipped_by(1)
    before = script.collective("barrier", site="train.py:11 save").live(silent_for=2)
    monkeypatch.setattr(watch, "open_run", lambda folder, sources, ranks: before)
    start = [0]
    told: list[str] = []
    watcher = Watcher(
        tmp_path, lambda: replace(before.job, attempt=start[0]), HANGS, PLUGINS.remedies,
        tell=lambda finding, diagnosis: told.append(finding.code), hung=lambda diagnosis, proven: None,
    )  # fmt: skip

    assert watcher.look() is not None
    assert told == ["DD101"]
    watcher.start_again()
    start[0] = 1

    assert watcher.look() is None
    assert told == ["DD101"]
    assert watcher.said(succeeded=True, interrupted=False, aborting=False).told == ()


def test_that_nobody_can_look_into_a_process_is_not_told_of_a_job_that_went_on(tmp_path: Path) -> None:
    """Nothing was recorded of it: a py-spy that hangs is no fault of the job, whose ranks have moved since."""
    recording = looked_at(*(rank(number, trouble="py-spy got no answer within 5 s") for number in range(2)))
    told: list[str] = []
    watcher = Watcher(
        tmp_path, Job, PLUGINS.checks.values(), PLUGINS.remedies,
        tell=lambda finding, diagnosis: told.append(finding.code), hung=lambda diagnosis, proven: None,
    )  # fmt: skip

    watcher._tell_news(examine(recording, PLUGINS.checks.values(), PLUGINS.remedies, live=True))

    assert told == ["DD608"]
    assert watcher.said(succeeded=True, interrupted=False, aborting=False).told == ()


def test_looks_at_a_job_that_moves_wait_for_what_the_last_one_cost(tmp_path: Path) -> None:
    """A tenth of a second of CPU is a hundredth of ten seconds: within two no second look follows, as often as is polled."""
    looks: list[float] = []

    def dear(*facts: object) -> list[Finding]:
        looks.append(time.monotonic())
        began = time.thread_time()
        while time.thread_time() - began < 0.1:
            pass
        return []

    check = replace(PLUGINS.checks["DD123"], examine=dear, facts=())
    watcher = Watcher(
        tmp_path, Job, [check], {}, tell=lambda finding, diagnosis: None, hung=lambda diagnosis, proven: None, interval=0.25
    )  # fmt: skip
    trace = TraceWriter(str(tmp_path), 0, 1, 0, 0)
    watcher.start()
    ends = time.monotonic() + 2
    while time.monotonic() < ends:
        trace.steps.write(at_ns=time.monotonic_ns())
        time.sleep(0.01)
    watcher.stop()

    assert len(looks) == 1


def test_that_it_is_still_so_is_said_with_one_number_of_seconds(tmp_path: Path) -> None:
    said: list[str] = []
    options = RunOptions(tmp_path, notice=said.append)
    stuck = replace(finding(Stalls.MAYBE, 0), title="has been at `time.sleep(3600)` for 27 s, and never moved")

    LiveFindings(options, JobState(), lambda: None, lambda: None).still(stuck, 43.2)

    assert said == ["DD199 rank 0: still so after 43 s; has been at `time.sleep(3600)`, and never moved"]


def test_what_is_told_is_kept_at_once_in_case_the_launcher_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = read_as_standing(monkeypatch)
    kept: dict[str, tuple[str, ...]] = {}

    def tell(finding: Finding, diagnosis: object) -> None:
        said = watcher.said(succeeded=False, interrupted=False, aborting=False)
        kept[finding.code] = tuple(one.code for one in said.stood) if said.leads else ()

    watcher = Watcher(
        tmp_path, lambda: here.job, HANGS, PLUGINS.remedies, tell=tell, hung=lambda diagnosis, proven: None,
        closer=lambda: looked_at(in_collective(0), rank(1, frame("train.py:57 save"), still=40.0)),
    )  # fmt: skip
    for _ in range(2):
        watcher._resting()

    assert "DD116" in kept["DD116"]
