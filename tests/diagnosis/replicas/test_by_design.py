"""Replicas that differ because the program wants it: local states, weights that travel in parts, heads of each rank's own."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Confidence, Severity
from distdoctor.recording.trace.events import FirstStep, Saving
from distdoctor.recording.trace.layout import CallFlag, UpdateFlag
from distdoctor.testing.gradients import TrainedJob, trained_job

SHAPES = {"body.weight": (64, 20), "body.bias": (64,), "head.weight": (10, 64)}
TOTAL = sum(rows * (more[0] if more else 1) for rows, *more in SHAPES.values())
CHECKS = PLUGINS.checks


def told(job: TrainedJob, *codes: str, running: bool = False) -> list[tuple[str, Confidence]]:
    checks = [CHECKS[code] for code in codes] if codes else CHECKS.values()
    found = examine(job.recording(running=running), checks).findings
    return [(finding.code, finding.confidence) for finding in found]


def test_a_state_that_the_parameters_do_not_feel_is_each_ranks_own() -> None:
    job = trained_job(3).initial().step()
    for _ in range(3):
        job.step(state={2: 1})

    assert told(job) == []
    assert told(job, running=True) == []


def test_a_state_that_makes_the_parameters_different_is_told_for_sure() -> None:
    job = trained_job(3).initial().step().step(state={2: 1}, names=["head.weight"])

    assert told(job) == [("DD205", LIKELY)]
    assert told(job.step(params={2: 1}, state={2: 2}, names=["head.weight"])) == [("DD205", CERTAIN)]


def apart(steps: int, sent: list[list[tuple[int, ...]]], flags: int = 0, nbytes: int = 0) -> TrainedJob:
    """Local steps from the first one on, and between them calls of these shapes, in turns."""
    job = trained_job(2).initial()
    for step in range(steps):
        job.step(grads={1: step + 1}, params={1: step + 1}, synced=0, unsynced=1)
        for shape in sent[step % len(sent)]:
            job.collective("all_reduce", shape, flags=flags, nbytes=nbytes)
    return job


ONE_BY_ONE = [SHAPES["body.weight"]], [SHAPES["body.bias"]], [SHAPES["head.weight"]]


@pytest.mark.parametrize(
    "sent",
    [[list(SHAPES.values())], [[(TOTAL,)]], [[(1000,), (TOTAL - 1000,)]], list(ONE_BY_ONE)],
    ids=["one by one", "flat", "buckets", "in turns"],
)
def test_weights_that_are_sent_between_steps_are_brought_together(sent: list[list[tuple[int, ...]]]) -> None:
    assert told(apart(9, sent)) == []


def test_weights_that_are_sent_as_objects_are_brought_together() -> None:
    assert told(apart(6, [[(TOTAL,)]], flags=int(CallFlag.OBJECT), nbytes=4 * TOTAL)) == []


def test_a_part_of_the_weights_brings_nothing_together() -> None:
    assert told(apart(9, [[SHAPES["body.weight"]]])) == [("DD207", CERTAIN)]


def by_hand(
    *left_out: dict[int, int], mixed: bool = False, last: int = 0, average_line: str = "train.py:20 reduce"
) -> TrainedJob:
    """Gradients are reduced on a line behind each backward. `left_out`: for each step, how many passes before it a rank did not
    step after; `last`: those after the last step. `mixed`: the weights are averaged too, before the first pass."""
    job = trained_job(2, agree=(), wrapped=False)
    job.note(FirstStep(tuple(str(list(shape)) for shape in SHAPES.values()), TOTAL, 3)).initial()
    for number, passes in enumerate((*left_out, {0: last, 1: last})):
        began = {}
        for rank, log in enumerate(job.logs):
            for turn in range(passes.get(rank, 0) + (number < len(left_out))):
                if mixed and not turn:
                    for shape in SHAPES.values():
                        log.call("all_reduce", shape, site=average_line)
                began[rank] = log.at(None)
                for shape in SHAPES.values():
                    log.call("all_reduce", shape, site="train.py:20 reduce")
        if number < len(left_out):
            apart = {1: number + 1} if any(one.get(0) != one.get(1) for one in left_out[: number + 1]) else {}
            counts = {rank: 1 + passes.get(rank, 0) for rank in (0, 1)}
            job.step(grads=apart, params=apart, backwards=counts, synced=0)
            for rank, log in enumerate(job.logs):
                log.times(forward_ended_ns=began[rank], backwards=counts[rank])
    return job


@pytest.mark.parametrize("last", [0, 4])
def test_gradients_of_a_pass_whose_step_one_rank_left_out_are_no_weights(last: int) -> None:
    """Each rank leaves a step out, now and then, and reduces its gradients all the same: nothing brings the weights together."""
    job = by_hand({0: 1}, {}, {1: 1}, {}, {0: 1}, {1: 1}, {}, last=last)

    assert told(job) == [("DD210", LIKELY)]


def test_steps_that_all_ranks_leave_out_together_are_no_news() -> None:
    assert told(by_hand({0: 1, 1: 1}, {}, {0: 2, 1: 2}, {}, last=1)) == []


def test_weights_that_are_averaged_besides_the_gradients_are_brought_together() -> None:
    left_out: list[dict[int, int]] = [{0: 1}, {}, {1: 1}, {}, {0: 1}, {1: 1}, {}]

    assert told(by_hand(*left_out, mixed=True, average_line="train.py:30 average")) == []
    assert told(by_hand(*left_out, mixed=True)) == []  # by the same function, where a step has one pass


def test_independent_trials_are_no_replicas() -> None:
    def trials(**about: object) -> TrainedJob:
        job = trained_job(2, agree=(), wrapped=False).initial()
        for step in range(6):
            job.collective("all_reduce", (1,)).step(grads={1: step + 1}, params={1: step + 1}, **about)  # type: ignore[arg-type]
        return job

    assert told(trials(), "DD206") == [("DD206", LIKELY)]
    assert told(trials(hyper={0: 7, 1: 8}), "DD206") == []
    job = trials()
    for rank in (0, 1):
        job.note(Saving(f"/job/member{rank}.pt", "torch.save", 6, 1), only=[rank], site="train.py:60 main")
    assert told(job, "DD206") == []


def test_what_is_reduced_once_an_epoch_says_nothing_of_steps() -> None:
    job = trained_job(2, agree=(), wrapped=False).initial()
    for step in range(20):
        job.step(grads={1: step + 1}, params={1: step + 1})
        if step % 5 == 4:
            job.collective("all_reduce", (1,))

    assert told(job, "DD206") == []


def accumulating(factor: float) -> TrainedJob:
    flags, job = UpdateFlag.DIGESTED | UpdateFlag.ONE_LINE, trained_job(2).initial()
    for step in (1, 2):
        job.step(backwards=4, unsynced=3, flags=flags)
        own = {0: [1.0, 2.0, 3.0, 4.0], 1: [3.0, 2.0, 1.0, 0.5]}
        job.spot(step, own=own, used=[factor * (a + b) / 2 for a, b in zip(*own.values(), strict=True)])
    return job


def test_gradients_that_the_script_divides_by_hand_are_not_too_large() -> None:
    assert told(accumulating(1.0), "DD208") == [("DD208", LIKELY)]
    assert told(accumulating(0.25), "DD208") == []


def test_gradients_that_each_rank_divides_are_not_too_large_though_nothing_wraps_the_model() -> None:
    def divided(by: float) -> TrainedJob:
        flags, job = UpdateFlag.DIGESTED | UpdateFlag.ONE_LINE, trained_job(2, wrapped=False).initial()
        for step in (1, 2):
            job.step(backwards=4, unsynced=0, flags=flags)
            own = [1.0, 2.0, 3.0, 4.0 + step]
            job.spot(step, own={0: own, 1: own}, used=[value / by for value in own])
        return job

    assert told(divided(1.0), "DD208") == [("DD208", LIKELY)]
    assert told(divided(4.0), "DD208") == []


def test_what_an_optimizer_reduces_within_its_own_step_is_not_too_large() -> None:
    def stepping(params: dict[int, int]) -> TrainedJob:
        flags, job = UpdateFlag.DIGESTED | UpdateFlag.ONE_LINE, trained_job(2, wrapped=False).initial()
        for _ in range(2):
            job.step(backwards=4, unsynced=0, flags=flags, grads={1: 1}, params=params)
        return job

    assert told(stepping({}), "DD208") == []
    assert told(stepping({1: 1}), "DD208") == [("DD208", LIKELY)]


def summed(losses: dict[int, float]) -> TrainedJob:
    job = trained_job(2).initial()
    for step in (1, 2):
        job.step(loss=losses)
        job.spot(step, own={0: [1.0, 2.0, 3.0, 4.0], 1: [3.0, 2.0, 1.0, 0.5]}, used=[4.0, 4.0, 4.0, 4.5])
    return job


def test_a_sum_completes_the_parts_of_one_loss_that_all_ranks_compute() -> None:
    assert told(summed({0: 2.3, 1: 2.4}), "DD209") == [("DD209", CERTAIN)]
    assert told(summed({0: 2.3, 1: 2.3}), "DD209") == []


@pytest.mark.parametrize("passes", [1, 4])
def test_counts_of_each_ranks_own_that_are_far_apart_are_a_note_with_micro_batches_too(passes: int) -> None:
    def job(*counts: int) -> TrainedJob:
        made = trained_job(2).initial()
        for step in range(4):
            roots = {rank: f"div {count + step};NllLoss sum" for rank, count in enumerate(counts)}
            made.step(backwards=passes, unsynced=passes - 1, roots=roots)
        return made

    (finding,) = examine(job(100, 20).recording(), [CHECKS["DD209"]]).findings
    assert (finding.severity, finding.confidence) == (NOTE, POSSIBLE)
    assert "counts of their own" in finding.title
    assert told(job(100, 95), "DD209") == []


def test_counts_that_are_far_apart_in_some_steps_and_apart_in_most_are_a_note_as_well() -> None:
    def job(*counts: tuple[int, int]) -> TrainedJob:
        made = trained_job(2).initial()
        for step in counts:
            made.step(roots={rank: f"div {count};NllLoss sum" for rank, count in enumerate(step)})
        return made

    far, apart, close = (90, 180), (140, 105), (100, 95)
    mixed = job((89, 170), (150, 70), (60, 100), (101, 130), (95, 121), (77, 101), apart, close)
    assert told(mixed, "DD209") == [("DD209", POSSIBLE)]
    assert told(job(far, (91, 181), (92, 184), (101, 100), (110, 111), (120, 119), (99, 98)), "DD209") == []


@pytest.mark.parametrize(("turns", "expected"), [(False, (LIKELY, WARNING)), (True, (POSSIBLE, NOTE))])
def test_counts_of_which_one_rank_always_has_the_fewest_are_a_warning(
    turns: bool, expected: tuple[Confidence, Severity]
) -> None:
    job = trained_job(2).initial()
    for number in range(20):
        counts = (30 + number, 120 + number) if not turns or number % 3 else (120 + number, 30 + number)
        job.step(roots={rank: f"div {count};nll_loss sum" for rank, count in enumerate(counts)})
    (finding,) = examine(job.recording(), [CHECKS["DD209"]]).findings

    assert (finding.confidence, finding.severity) == expected


def test_an_optimizer_that_leaves_out_what_is_not_finite_is_a_note() -> None:
    job = trained_job(2).initial().step().step(non_finite={0: ["head.weight"], 1: ["head.weight"]})
    (broken,) = examine(job.recording(), [CHECKS["DD801"]]).findings
    (spared,) = examine(job.step().recording(), [CHECKS["DD801"]]).findings

    assert (broken.severity, spared.severity) != (NOTE, NOTE)
    assert spared.severity == NOTE


SPOTS_OF_ONE = [1.0, -2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("norms", "spots", "severity"),
    [
        ({0: 0.5, 1: 0.5 * (1 + 1e-6)}, [1.0, -2.0, 3.0, 4.000002], NOTE),
        ({0: 0.5, 1: 0.5}, [-1.0, 2.0, -3.0, -4.0], ERROR),  # turned: as long as the other
        ({0: 0.5, 1: 0.501}, SPOTS_OF_ONE, ERROR),
        ({0: 0.5, 1: 0.5}, None, ERROR),  # no element was kept
    ],
)
def test_gradients_that_are_the_same_but_for_rounding_are_a_note(
    norms: dict[int, float], spots: list[float] | None, severity: Severity
) -> None:
    job = trained_job(2).initial()
    for step in (1, 2):
        job.step(grads={1: 1}, params={1: 1}, norms=norms)
        if spots is not None:
            job.spot(step, own={0: SPOTS_OF_ONE, 1: SPOTS_OF_ONE}, used={0: SPOTS_OF_ONE, 1: spots})
    (found,) = examine(job.recording(), [CHECKS["DD202"]]).findings
    assert (found.severity, found.confidence) == (severity, LIKELY if severity == NOTE else CERTAIN)
    assert ("no more than rounding" in found.title) == (severity == NOTE)


def test_rounding_that_has_grown_by_the_end_is_no_rounding() -> None:
    job = trained_job(2).initial().step(grads={1: 1}, params={1: 1}, norms={0: 0.5, 1: 0.5})
    job.spot(1, own={0: SPOTS_OF_ONE, 1: SPOTS_OF_ONE}, used={0: SPOTS_OF_ONE, 1: SPOTS_OF_ONE})
    job.step(skip=100, grads={1: 1}, params={1: 1}, norms={0: 0.5, 1: 0.6})
    (found,) = examine(job.recording(), [CHECKS["DD202"]]).findings
    assert found.severity == ERROR
