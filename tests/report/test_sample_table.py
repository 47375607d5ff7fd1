"""The verdict on data: the first line is the answer, and the table tells padding from overlap and an old order from a new one."""

from __future__ import annotations

from dataclasses import replace

from distdoctor.cli.check_data import WALK_STREAMS
from distdoctor.diagnosis.data.sample_account import accounts
from distdoctor.diagnosis.data.samples import SampleOrders
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import ERROR, Finding
from distdoctor.recording.recording import Job, Recording
from distdoctor.report.sample_table import render
from distdoctor.testing.samples import sampled_job, share
from distdoctor_checks.data.missing_distributed_sampler import examine as missing_distributed_sampler
from distdoctor_checks.data.missing_distributed_sampler import sick


def test_a_healthy_training_is_one_row_an_epoch() -> None:
    job = sampled_job(ranks=2, length=100)
    for epoch in range(2):
        job.train(epoch=epoch)
    assert render(job.recording()).splitlines() == [
        "nothing is wrong with what ranks 0-1 read to train: 2 epochs, 0 samples drawn by more than one rank, none unseen",
        "",
        "/job/train.py:12 main, DistributedSampler, 100 samples of Digits, trains",
        "  epoch  rank  drawn  distinct  padding  order",
        "  0      0-1   50     50        -        its own",
        "  1      0-1   50     50        -        its own",
    ]


def test_paths_are_shown_from_where_the_user_stands_and_dropped_batches_are_explained() -> None:
    orders = {rank: share(100, 2, rank)[:48] for rank in range(2)}
    job = sampled_job(ranks=2, length=100)
    for _ in range(2):
        job.train(orders=orders, batch_size=8, epoch_told=0)
    assert render(job.recording(), base="/job").splitlines()[2:] == [
        "train.py:12 main, DistributedSampler, 100 samples of Digits, trains",
        "  epoch  rank  drawn  distinct  padding  order",
        "  0      0-1   48     48        -        its own",
        "  1      0-1   48     48        -        as epoch 0",
        "  epochs 0-1: 4 of 100 samples were drawn by nobody: less than a batch of each rank, as drop_last leaves out",
    ]


def test_data_that_differ_between_ranks_are_not_called_healthy_shares() -> None:
    job = sampled_job(ranks=2, length=100).train(digest={0: "aa", 1: "bb"})
    answer, *table = render(job.recording()).splitlines()
    assert answer.endswith("read to train: 1 epoch, but whether ranks share samples cannot be told (see below)")
    assert table[-1] == (
        "  epoch 0: the ranks' data sets do not hold the same (made without a common seed, or cut to a share on each rank): "
        "what ranks share cannot be told"
    )
    alone = render(sampled_job(ranks=1, length=100).train(orders={0: list(range(100))}).recording()).splitlines()
    assert alone[0] == "nothing is wrong with what rank 0 read to train: 1 epoch, none unseen"


def test_padding_is_no_overlap() -> None:
    (loader,) = accounts(SampleOrders.of(sampled_job(ranks=2, length=101).train().recording()))
    (epoch,) = loader.epochs
    assert (epoch.shared, epoch.unseen, [one.padding for one in epoch.shares]) == (0, 0, [0, 1])
    assert [(one.drawn, one.distinct) for one in epoch.shares] == [(51, 51), (51, 51)]


def test_an_overlap_of_three_ranks_is_a_matrix() -> None:
    orders = {0: [*range(40)], 1: [*range(30, 70)], 2: [*range(60, 100)]}
    recording = sampled_job(ranks=3, length=100).train(orders=orders, sampler="BatchSampler>Own").recording()
    assert render(recording).splitlines()[-5:] == [
        "  epoch 0: 20 samples were drawn by more than one rank (padding not counted)",
        "  epoch 0: in common: rank    0    1    2",
        "  epoch 0: in common:    0    -   10    0",
        "  epoch 0: in common:    1   10    -   10",
        "  epoch 0: in common:    2    0   10    -",
    ]


def test_an_order_that_comes_back_is_named_with_its_epoch() -> None:
    job = sampled_job(ranks=2, length=100).train(epoch=0).train(epoch=1).train(epoch=0)
    (loader,) = accounts(SampleOrders.of(job.recording()))
    assert [[one.same_as for one in epoch.shares] for epoch in loader.epochs] == [[-1, -1], [-1, -1], [0, 0]]


def test_what_nobody_drew_is_counted_and_a_pass_left_early_claims_nothing() -> None:
    orders = {rank: share(100, 2, rank)[:45] for rank in range(2)}
    whole = sampled_job(ranks=2, length=100).train(orders=orders)
    assert "  epoch 0: 10 of 100 samples were drawn by nobody" in render(whole.recording()).splitlines()
    left = sampled_job(ranks=2, length=100).train(orders=orders, running=True)
    (loader,) = accounts(SampleOrders.of(left.recording()))
    assert loader.epochs[0].unseen == -1
    assert "(left early)" in render(left.recording())


def test_the_first_line_is_the_first_finding() -> None:
    recording = sampled_job(ranks=2, length=100).train().recording()
    found = Finding(code="DD303", slug="overlapping-samples", severity=ERROR, title="ranks 0-1 share 9 samples")
    assert render(recording, [found, found]).splitlines()[0] == (
        "not every rank reads the right data: DD303 ranks 0-1 share 9 samples (and 1 more)"
    )


def test_where_no_loader_was_read_there_is_no_verdict() -> None:
    assert render(Recording(Job(), {})) == "no verdict on data: no DataLoader was iterated\n"


def test_checks_that_could_not_look_are_named_instead_of_calling_it_right() -> None:
    (first, *_) = render(sampled_job(ranks=2, length=100).train().recording(), unasked=("DD305",)).splitlines()

    assert "nothing is wrong" not in first
    assert first.endswith("no check found anything wrong, and DD305 could not look")


def test_a_bare_loader_is_told_where_only_samples_are_recorded() -> None:
    """As `check-data --loader` records: there is no gradient to look at."""
    whole = sick()
    found = examine(replace(whole, streams=frozenset(WALK_STREAMS.split(","))), [missing_distributed_sampler])

    assert [(one.code, one.ranks) for one in found.findings] == [("DD304", (0, 1))]
