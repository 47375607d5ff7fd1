"""Who is waited for is told from arrivals, by medians, and not where clocks or steps do not allow it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import NOTE, WARNING, Severity
from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.diagnosis.speed.timing import MILLISECOND, Timing
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import CoreShare
from distdoctor.testing.timing import Meeting, timed_job


def late(recording: Recording) -> dict[int, float]:
    """rank -> milliseconds a step that the others wait for it, of those that count as late."""
    timing = Timing.of(recording)
    return {one.rank: round(one.step.value / MILLISECOND, 1) for one in timing.late if timing.is_late(one)}


def codes(recording: Recording) -> list[tuple[str, tuple[int, ...]]]:
    checks = [check for code, check in PLUGINS.checks.items() if code.startswith("DD5") or code == "DD123"]
    return [(one.code, one.ranks) for one in examine(recording, checks).findings]


@pytest.mark.parametrize("where", ["data", "forward", "backward"])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_rank_that_takes_longer_is_the_late_one(where: str, rank: int) -> None:
    times: dict[str, Any] = {where: {rank: {"data": 1, "forward": 20, "backward": 30}[where] + 12}}
    recording = timed_job(3).steps(60, **times).recording()
    assert late(recording) == {rank: pytest.approx(12, abs=0.3)}
    assert codes(recording) == [("DD504" if where == "data" else "DD123", (rank,))]


@pytest.mark.parametrize(("queued_ms", "severity"), [(0, WARNING), (5, WARNING), (11, NOTE)])
def test_a_rank_that_is_late_because_it_has_no_core_is_a_note(queued_ms: int, severity: Severity) -> None:
    job = timed_job(3).steps(60, forward={1: 32})
    for rank, log in enumerate(job.logs):
        queued = 50 * MILLISECOND * queued_ms if rank == 1 else 0
        log.note(CoreShare((0, 1), 1, steps=50, ran_ns=50 * 20 * MILLISECOND, queued_ns=queued))

    (finding,) = examine(job.recording(), [PLUGINS.checks["DD123"]]).findings
    assert (finding.ranks, finding.severity) == ((1,), severity)
    assert ("in the queue for a core" in finding.title) == (severity is NOTE)


@pytest.mark.parametrize(
    ("ran_ms", "queued_ms", "severity"),
    [
        ((2, 2, 6), (4, 4, 26), NOTE),  # crowded out: twice as long in the queue for each second of work
        ((10, 10, 10.5), (60, 60, 70), NOTE),  # on a host that is full, with no more to do than the others
        ((10, 10, 16), (60, 60, 70), WARNING),
        ((4, 4, 12), (11, 11, 33), WARNING),  # three times the work waits three times as long
        ((2, 2, 30), (0, 0, 22), WARNING),  # the host is not full
    ],
)
def test_what_is_left_of_a_rank_that_is_crowded_out_says_nothing_of_its_work(
    ran_ms: tuple[float, ...], queued_ms: tuple[float, ...], severity: Severity
) -> None:
    job = timed_job(3).steps(60, forward={2: 60})
    for log, ran, queued in zip(job.logs, ran_ms, queued_ms, strict=True):
        log.note(
            CoreShare((0, 1), 1, steps=50, ran_ns=int(50 * ran * MILLISECOND), queued_ns=int(50 * queued * MILLISECOND))
        )

    (finding,) = examine(job.recording(), [PLUGINS.checks["DD123"]]).findings
    assert (finding.ranks, finding.severity) == ((2,), severity)


@pytest.mark.parametrize(
    ("cores", "slept_ms", "severity"), [(2, 0, NOTE), (4, 0, WARNING), (2, 14, WARNING)], ids=["full", "free", "asleep"]
)
def test_batches_that_are_work_are_a_note_where_workers_would_have_no_core(
    cores: int, slept_ms: int, severity: Severity
) -> None:
    job = timed_job(2).steps(60, data=15)
    step_ms = float(Timing.of(job.recording()).step_ns) / MILLISECOND
    for log in job.logs:
        ran = int(50 * (step_ms - slept_ms) * MILLISECOND)
        log.note(CoreShare(tuple(range(cores)), 1, steps=50, ran_ns=ran))

    (finding,) = examine(job.recording(), [PLUGINS.checks["DD504"]]).findings

    assert (finding.ranks, finding.severity) == ((0, 1), severity)
    assert ("num_workers" in finding.prescriptions[0].change) == (severity is WARNING)


def test_the_time_in_which_a_rank_had_no_core_is_not_the_collectors() -> None:
    def lost(queued_ms: int) -> list[float]:
        job = timed_job(2)
        for log in job.logs:
            log.note(CoreShare((0, 1), 1, steps=8, ran_ns=160 * MILLISECOND, queued_ns=queued_ms * MILLISECOND))
        for _ in range(6):
            job.steps(4).steps(1, forward={0: 60}, collected={0: 40}).steps(1, forward={1: 60}, collected={1: 40})
        findings = examine(job.recording(), [PLUGINS.checks["DD512"]]).findings
        return [one.evidence["lost_seconds"] for one in findings]

    assert lost(160) == [pytest.approx(lost(0)[0] / 2, rel=0.01)]


@pytest.mark.parametrize("worked", [0, 15])
def test_what_a_leader_waits_among_leaders_is_not_its_own_lateness(worked: int) -> None:
    """Averages within a host, then among one rank of each, whose hosts may be late."""
    job = timed_job(2)
    for log in job.logs:
        log.group("leaders", (0, 2))
    average = Meeting("all_reduce", (1000,), site="train.py:39 average", elsewhere={0: 25}, after=0.01)
    recording = job.steps(60, meetings=[average], forward={0: 20 + worked}).recording()

    assert late(recording) == ({0: pytest.approx(worked, abs=0.6)} if worked else {})


def test_the_line_is_where_most_is_lost_in_all_steps_and_not_where_a_rank_was_latest_once() -> None:
    job = timed_job(2).steps(1, synced=0, forward={1: 9000}, meetings=[Meeting("barrier", site="train.py:9 setup")])
    (late,) = (one for one in Timing.of(job.steps(60, forward={1: 32}).recording()).late if one.rank == 1)

    assert late.site.function == "train"


def test_what_the_late_rank_does_meanwhile_is_named() -> None:
    recording = timed_job(2).steps(60, backward={1: 50}).recording()
    timing = Timing.of(recording)
    words, more = timing.excess(1)
    assert words == "computes in backward"
    assert more / MILLISECOND == pytest.approx(20, abs=0.5)


def test_a_rank_that_is_late_now_and_then_is_not_accused() -> None:
    job = timed_job(2)
    for _ in range(12):
        job.steps(4).steps(1, forward={1: 200})
    assert late(job.recording()) == {}


def test_ranks_that_are_late_in_turn_are_not_accused() -> None:
    job = timed_job(2)
    for step in range(60):
        job.steps(1, forward={step % 2: 60})
    assert late(job.recording()) == {}


def test_first_steps_checkpoints_and_evaluations_do_not_move_the_medians() -> None:
    job = timed_job(2).steps(1, forward=5000).steps(20).steps(1, forward=9000).steps(20)
    recording = job.recording()
    timing = Timing.of(recording)
    assert timing.step_ns / MILLISECOND == pytest.approx(54, abs=3)
    assert codes(recording) == []


def test_jobs_of_a_few_steps_are_left_alone() -> None:
    with pytest.raises(NotApplicable, match="fewer than 19 steps"):
        Timing.of(timed_job(2).steps(12, forward={1: 500}).recording())


def test_a_rank_that_is_seconds_late_in_a_few_steps_is_named() -> None:
    """In the second step of DDP the ranks meet while it orders its buckets anew: nobody is late there."""
    job = timed_job(2).steps(1, forward={1: 3000}).steps(1)
    assert codes(job.steps(1, forward={1: 3000}).recording()) == []
    assert codes(job.steps(2, forward={1: 3000}).recording()) == [("DD123", (1,))]


def test_a_rank_that_is_late_where_models_are_averaged_now_and_then_is_not_late_in_each_step() -> None:
    """Steps that do not meet have no late rank, and count as well."""
    job = timed_job(2)
    for _ in range(3):
        job.steps(3, micro_steps=1, synced=0).steps(1, forward={1: 3000})
    assert codes(job.recording()) == []


def with_pauses(milliseconds: float, *, of: tuple[int, ...] = (0,)) -> Recording:
    job = timed_job(2)
    for number in range(8):
        job.steps(5).steps(1, forward={of[number % len(of)]: milliseconds})
    return job.recording()


def test_a_rank_that_works_alone_for_long_now_and_then_is_named_with_its_rhythm() -> None:
    (finding,) = examine(with_pauses(1500), [PLUGINS.checks["DD123"]]).findings

    assert (finding.ranks, finding.evidence["pauses"], finding.evidence["every_steps"]) == ((0,), 8, 6)
    assert finding.evidence["lost_seconds"] == pytest.approx(8 * 1.48, rel=0.02)
    assert "rank 1 waits" in finding.title
    assert "after every 6 steps" in finding.title


def test_pauses_that_cost_little_or_are_of_several_ranks_are_left_alone() -> None:
    assert codes(with_pauses(150)) == []
    assert codes(with_pauses(1500, of=(0, 1))) == []


def test_clocks_of_different_hosts_are_not_compared() -> None:
    recording = timed_job(2).steps(60, forward={1: 60}).recording()
    ranks = {rank: replace(log, host=f"node{rank}") for rank, log in recording.ranks.items()}
    recording = replace(recording, ranks=ranks)
    assert Timing.of(recording).arrivals == ()
    assert codes(recording) == []


def test_the_order_of_the_ranks_does_not_matter() -> None:
    recording = timed_job(3).steps(60, forward={2: 60}).recording()
    turned = replace(recording, ranks=dict(reversed(recording.ranks.items())))
    assert codes(turned) == codes(recording) == [("DD123", (2,))]


def test_a_rank_without_a_recording_is_waited_for_by_nobody() -> None:
    recording = timed_job(3).steps(60, forward={2: 60}).recording()
    recording = replace(recording, ranks={rank: log for rank, log in recording.ranks.items() if rank != 1})
    assert codes(recording) == []


def test_a_ring_that_has_forgotten_the_early_calls_tells_the_same() -> None:
    job = timed_job(2).steps(60, backward={1: 50})
    for log in job.logs:
        log.lost["calls"] = 40
        del log._rows["calls"][:40]
    recording = job.recording()
    assert codes(recording) == [("DD123", (1,))]
    assert Timing.of(recording).excess(1)[0] == "computes in backward"


def test_calls_that_overlap_count_once() -> None:
    """Two buckets of a late rank are late by the same milliseconds, not by twice as many."""
    one = late(timed_job(2).steps(60, backward={1: 50}).recording())
    two = late(timed_job(2).steps(60, backward={1: 50}, meetings=[Meeting("all_reduce")]).recording())
    assert one == {1: pytest.approx(20, abs=0.3)}
    assert two == {1: pytest.approx(20, abs=0.3)}


def test_a_middle_stands_out_only_above_its_scatter() -> None:
    assert RobustMedian.of([10, 10.5, 9.5, 10]).stands_out
    assert not RobustMedian.of([1, 20, 3, 40, 0, 9]).stands_out
    assert not RobustMedian.of([]).stands_out
    assert RobustMedian.of([5, float("nan"), 5]).count == 2


def test_the_seconds_of_a_missing_no_sync_are_a_band_or_nothing() -> None:
    def evidence(recording: Recording) -> Any:
        (finding,) = [one for one in examine(recording, PLUGINS.checks.values()).findings if one.code == "DD501"]
        return finding.evidence

    clear = timed_job(2).steps(30, micro_steps=4, synced=4, forward=5, backward=8, transfer=3).recording()
    low, high = evidence(clear)["seconds_per_step_to_save_at_least"]
    assert (low, high) == (pytest.approx(0.009, rel=0.05), pytest.approx(0.009, rel=0.05))
    noisy = timed_job(2)
    for step in range(40):
        noisy.steps(1, micro_steps=4, synced=4, forward=5, backward=8, transfer=(step * 7 % 11) ** 2 / 4)
    found = evidence(noisy.recording())
    assert found["seconds_per_step_to_save_at_least"] is None
    assert found["bytes_per_step_to_save"] == 3 * 4 * 1000 * 1000


def test_the_loop_that_trains_is_named_though_an_evaluation_was_read_last() -> None:
    job = timed_job(2, workers=3).steps(40, data=30)
    for log in job.logs:
        log.loader_pass(loop_site="train.py:60 evaluate", loader=2, started_ns=job.now[log.rank])

    timing = Timing.of(job.recording())

    assert [timing.loop_site(rank).function for rank in (0, 1)] == ["train", "train"]
    assert [times.workers for times in timing.ranks.values()] == [3, 3]


@pytest.mark.parametrize(
    ("more", "is_late"), [(lambda step: step, True), (lambda step: (step * 7 % 11) ** 2 / 4 - 5, False)]
)
def test_a_rank_that_gets_slower_and_slower_is_late_though_its_times_scatter(more: Any, is_late: bool) -> None:
    job = timed_job(2)
    for step in range(60):
        job.steps(1, forward={0: 20 + max(0, more(step))})
    assert (list(late(job.recording())) == [0]) == is_late
