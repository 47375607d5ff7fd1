"""Data that are read in a fixed course, in parts, or not at all because the program wants it."""

from __future__ import annotations

import numpy as np
import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import NOTE, POSSIBLE, Confidence
from distdoctor.recording.trace.layout import PassFlag
from distdoctor.testing.samples import SOURCE, SampledJob, sampled_job, share

CHECKS = PLUGINS.checks
COURSE = """
class ByLength(DistributedSampler):
    def __iter__(self):
        order = sorted(range(len(self.dataset)), key=self.lengths.__getitem__)
        return iter(order[self.rank : self.total_size : self.num_replicas])
"""
SLICED = SOURCE.replace("            step(batch)", "            step(batch.chunk(world_size)[rank])")


def told(job: SampledJob, source: str = SOURCE) -> list[tuple[str, Confidence]]:
    found = examine(job.recording(sources={"/job/train.py": source}), CHECKS.values()).findings
    return [
        (finding.code, finding.confidence)
        for finding in found
        if finding.severity != NOTE or finding.confidence != POSSIBLE
    ]


def test_a_sampler_that_draws_nothing_at_random_has_one_course_on_purpose() -> None:
    job = sampled_job(ranks=2, length=100)
    for _ in range(2):
        replicas = {"num_replicas": 2, "sampler_rank": {0: 0, 1: 1}}
        job.train(sampler="BatchSampler>ByLength", flags=PassFlag.SHUFFLE_KNOWN, **replicas)

    assert [code for code, _ in told(job)] == ["DD301"]
    assert told(job, SOURCE + COURSE) == []
    assert [code for code, _ in told(job, SOURCE + COURSE.replace("sorted(", "torch.randperm("))] == ["DD301"]


def test_each_epoch_twice_is_no_constant_epoch() -> None:
    job = sampled_job(ranks=2, length=100)
    for calls, epoch in enumerate((0, 0, 1, 1), 1):
        orders = {rank: share(100, 2, rank, epoch=epoch) for rank in range(2)}
        job.train(orders=orders, epoch_told=epoch, set_epoch_calls=calls, set_epoch_site="train.py:29 train")

    assert told(job) == []


def test_a_global_batch_of_which_each_rank_takes_its_share_is_no_missing_sampler() -> None:
    order = [int(i) for i in np.random.default_rng(0).permutation(100)]
    flags = PassFlag.WHOLE | PassFlag.SHUFFLE_KNOWN
    job = sampled_job(ranks=2, length=100).train(
        orders={0: order, 1: order}, sampler="BatchSampler>RandomSampler", flags=flags
    )

    assert [code for code, _ in told(job)] == ["DD304"]
    assert told(job, SLICED) == []


def test_a_random_part_of_the_data_on_each_rank_is_no_overlap() -> None:
    orders = {rank: share(100, 1, 0, seed=rank)[:50] for rank in range(2)}

    def job(sampler: str) -> SampledJob:
        return sampled_job(ranks=2, length=100).train(
            orders=orders, sampler=f"BatchSampler>{sampler}", flags=PassFlag.SHUFFLE_KNOWN
        )

    assert [code for code, _ in told(job("HalfSampler"))] == ["DD303"]
    assert told(job("RandomSampler")) == []


def test_a_sampler_that_gives_a_rank_a_sample_twice_in_another_pass_draws_with_replacement() -> None:
    """What two ranks have in common in one pass comes by chance then; where it never does, their shares overlap."""
    shared = {0: list(range(40)), 1: [3, 5, *range(50, 88)]}

    def job(later: list[int]) -> SampledJob:
        first = sampled_job(ranks=2, length=100).train(orders=shared, sampler="BatchSampler>PacedSampler")
        return first.train(orders={0: later, 1: list(range(50, 90))}, sampler="BatchSampler>PacedSampler")

    assert "DD303" in [code for code, _ in told(job([*range(40)]))]
    assert "DD303" not in [code for code, _ in told(job([7, 7, *range(38)]))]


def test_samples_that_are_left_out_here_and_there_may_be_unfit() -> None:
    def job(kept: list[int]) -> SampledJob:
        job = sampled_job(ranks=2, length=200)
        for _ in range(3):
            order = [int(i) for i in np.random.default_rng(job.steps).permutation(kept)]
            job.train(orders={rank: order[rank::2] for rank in range(2)}, sampler="BatchSampler>Own", flags=PassFlag(0))
        return job

    rng = np.random.default_rng(1)
    assert [code for code, _ in told(job([i for i in range(200) if i < 150]))] == ["DD310"]
    assert [code for code, _ in told(job([i for i in range(200) if i % 4]))] == ["DD310"]
    assert told(job([i for i in range(200) if rng.random() < 0.8])) == []


def test_an_evaluation_that_is_cut_to_the_length_of_the_data_may_have_left_its_padding_out() -> None:
    job, cut = sampled_job(ranks=2, length=41).evaluate(), "\n    every = torch.cat(parts)[: len(data)]\n"

    assert [code for code, _ in told(job)] == ["DD309"]
    assert told(job, SOURCE + cut) == []
    assert told(job, "from composer import Trainer\n" + SOURCE) == []


def test_ranks_that_step_without_a_batch_deal_with_uneven_shares() -> None:
    orders = {0: list(range(16)), 1: list(range(16, 24))}

    def severities(passes: int) -> list[str]:
        job = sampled_job(ranks=2, length=24)
        for _ in range(passes):
            job.train(orders=orders, sampler="BatchSampler>SequentialSampler", batch_size=4)
        return [str(one.severity.word) for one in examine(job.recording(), [CHECKS["DD305"]]).findings]

    assert severities(1) == ["warning"]
    assert severities(2) == ["note"]


@pytest.mark.parametrize(("steps", "severity"), [((12, 12), "note"), ((12, 6), "warning")])
def test_ranks_that_begin_anew_at_once_and_end_together_leave_nobody_waiting(
    steps: tuple[int, int], severity: str
) -> None:
    orders = {0: list(range(16)), 1: list(range(16, 24))}
    job = sampled_job(ranks=2, length=24)
    for epoch in range(3):
        first = {0: 4 * epoch, 1: 2 * epoch}
        job.train(orders=orders, sampler="BatchSampler>SequentialSampler", batch_size=4, first_step=first)
    for rank, made in enumerate(steps):
        for _ in range(made):
            job.logs[rank].step()
    found = examine(job.recording(), [CHECKS["DD305"]]).findings

    assert [one.severity.word for one in found] == [severity]


def test_ranks_that_make_other_numbers_of_steps_are_compared_in_the_same_epoch() -> None:
    job = sampled_job(ranks=2, length=288)
    for epoch in range(3):
        steps = {0: 24 * epoch, 1: 12 * epoch}  # rank 0 trains a second model with an optimizer of its own
        job.train(
            epoch=epoch,
            epoch_told=epoch,
            set_epoch_calls=epoch + 1,
            set_epoch_site="train.py:29 train",
            first_step=steps,
        )

    assert told(job) == []
