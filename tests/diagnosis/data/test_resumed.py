"""What a resumed job repeats and loses is counted exactly, and how it goes on is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.data.resumption import compare
from distdoctor.diagnosis.examination import examine
from distdoctor.recording.recording import Recording
from distdoctor.recording.resumption import Resumption, read_resumption
from distdoctor.testing import recording
from distdoctor.testing.samples import sampled_job, share
from distdoctor.testing.states import snapshot


def job(*epochs: tuple[int, int, int]) -> Recording:
    """Two ranks' epochs over 100 samples as (whose order, first draw of a rank, last draw)."""
    made = sampled_job(ranks=2, length=100)
    for epoch, first, last in epochs:
        orders = {rank: share(100, 2, rank, epoch=epoch)[first:last] for rank in range(2)}
        made.train(orders=orders, epoch_told=epoch, set_epoch_calls=1)
    return made.recording()


WHOLE = [(0, 0, 50), (1, 0, 50), (2, 0, 50)]
BEFORE = [(0, 0, 50), (1, 0, 20)]


@pytest.mark.parametrize(
    ("resumed", "numbers", "words"),
    [
        ([(1, 20, 50), (2, 0, 50)], (0, 0), "continues where it stopped"),
        ([(1, 0, 50), (2, 0, 50)], (40, 0), "restarts epoch 1"),
        ([(2, 0, 50)], (0, 60), "the rest of epoch 1 is skipped"),
    ],
    ids=["healthy", "the epoch again", "the rest skipped"],
)
def test_repeated_and_lost_samples_are_counted(
    resumed: Sequence[tuple[int, int, int]], numbers: tuple[int, int], words: str
) -> None:
    found = compare(job(*WHOLE), job(*BEFORE), job(*resumed))
    assert (found.repeated, found.lost, found.trouble) == (*numbers, "")
    assert (found.epoch, found.into_epoch, found.of_epoch) == (1, 40, 100)
    assert words in found.order
    assert found.healthy == (numbers == (0, 0))


@pytest.mark.parametrize(
    ("killed", "resumed", "numbers", "words"),
    [
        (
            [(0, 0, 50), (1, 0, 27)],
            [(1, 20, 50), (2, 0, 50)],
            (0, 0, 40),
            "continues from its last checkpoint; 14 samples were",
        ),
        (
            [(0, 0, 50), (1, 0, 27)],
            [(1, 0, 50), (2, 0, 50)],
            (0, 0, 0),
            "right if the last checkpoint was saved there; 54 samples",
        ),
        (
            [(0, 0, 50), (1, 0, 27)],
            [(0, 20, 50), (1, 0, 50), (2, 0, 50)],
            (0, 0, 40),
            "continues from its last checkpoint; 114 s",
        ),
        ([(0, 0, 50), (1, 0, 27)], [(2, 0, 50)], (0, 46, 54), "the rest of epoch 1 is skipped"),
        (
            [(0, 0, 8)],
            [(0, 0, 50), (1, 0, 50), (2, 0, 50)],
            (0, 0, 0),
            "restarts epoch 0 from its first sample",
        ),
    ],
    ids=[
        "a checkpoint in the epoch",
        "at its beginning",
        "in the epoch before",
        "the rest",
        "none at all",
    ],
)
def test_what_a_killed_job_drew_behind_its_last_checkpoint_may_come_again(
    killed: Sequence[tuple[int, int, int]],
    resumed: Sequence[tuple[int, int, int]],
    numbers: tuple[int, int, int],
    words: str,
) -> None:
    found = compare(job(*WHOLE), job(*killed), job(*resumed), killed=True)
    assert (found.repeated, found.lost, found.into_epoch, found.trouble) == (*numbers, "")
    assert words in found.order
    assert found.healthy == (numbers[:2] == (0, 0))


def test_a_killed_job_that_is_resumed_in_an_order_of_its_own_is_not_judged() -> None:
    found = compare(job(*WHOLE), job((0, 0, 50), (1, 0, 27)), job((7, 0, 30), (2, 0, 50)), killed=True)
    assert "use --stop-args instead of --kill-at" in found.trouble


@pytest.mark.parametrize(
    ("step", "resumed", "words", "repeats", "healthy"),
    [
        (8, [(1, 0, 32), (2, 0, 32)], "draws epoch 1 again instead of epoch 2", 0, False),
        (8, [(2, 0, 32)], "continues where it stopped", 0, True),
        (6, [(1, 0, 32), (2, 0, 32)], "restarts epoch 1 from its first sample", 32, False),
        (6, [(1, 16, 32), (2, 0, 32)], "continues where it stopped", 0, True),
    ],
    ids=["the epoch before the save", "the epoch after it", "its epoch anew", "the rest of it"],
)
def test_where_the_save_is_known_what_was_drawn_until_then_counts(
    step: int, resumed: Sequence[tuple[int, int, int]], words: str, repeats: int, healthy: bool
) -> None:
    def trained(*epochs: tuple[int, int, int]) -> Recording:
        made = sampled_job(ranks=2, length=64)
        for epoch, first, last in epochs:
            made.train(orders={rank: share(64, 2, rank, epoch=epoch)[first:last] for rank in range(2)})
        return made.recording()

    earlier = (
        snapshot("start", run="one", weights={"head.weight": "a"}),
        snapshot("save", run="one", step=step, weights={"head.weight": "b"}, moments={"head.weight": "m"}),
    )
    start = snapshot("start", run="two", weights={"head.weight": "b"}, moments={"head.weight": "m"})
    after = replace(trained(*resumed), states=(start,), earlier_states=earlier)

    found = compare(
        trained((0, 0, 32), (1, 0, 32), (2, 0, 32)), trained((0, 0, 32), (1, 0, 32), (2, 0, 12)), after, killed=True
    )

    assert (found.step, found.repeated, found.lost, found.healthy, found.trouble) == (step, repeats, 0, healthy, "")
    assert words in found.order


def test_the_rest_of_an_epoch_may_come_from_a_loader_around_the_same_sampler() -> None:
    made = sampled_job(ranks=2, length=100)
    for epoch, first, sampler, line in ((1, 20, "SkipBatchSampler>BatchSampler>DistributedSampler", "train.py:20 main"),
                                        (2, 0, "BatchSampler>DistributedSampler", "train.py:12 main")):  # fmt: skip
        orders = {rank: share(100, 2, rank, epoch=epoch)[first:] for rank in range(2)}
        made.train(orders=orders, sampler=sampler, made_site=line)

    found = compare(job(*WHOLE), job(*BEFORE), made.recording())

    assert (found.order, found.healthy) == ("continues where it stopped", True)


def test_padding_in_the_rest_of_an_epoch_is_no_repetition() -> None:
    def padded(*epochs: tuple[int, int, int]) -> Recording:
        made = sampled_job(ranks=2, length=101)
        for epoch, first, last in epochs:
            orders = {rank: share(101, 2, rank, epoch=epoch)[first:last] for rank in range(2)}
            made.train(orders=orders, epoch_told=epoch, set_epoch_calls=1)
        return made.recording()

    found = compare(padded((0, 0, 51), (1, 0, 51)), padded((0, 0, 51), (1, 0, 20)), padded((1, 20, 51)))
    assert (found.repeated, found.lost, found.order) == (0, 0, "continues where it stopped")


def test_a_sampler_that_forgets_the_epoch_is_named() -> None:
    found = compare(job(*WHOLE), job(*BEFORE), job((0, 20, 50), (2, 0, 50)))
    drawn = {index for rank in range(2) for index in share(100, 2, rank, epoch=1)[:20]}
    added = {index for rank in range(2) for index in share(100, 2, rank, epoch=0)[20:]}
    assert (found.repeated, found.lost) == (len(drawn & added), 100 - len(drawn | added))
    assert "order of epoch 0 instead of epoch 1" in found.order


def test_a_checkpoint_at_the_end_of_an_epoch_may_go_on_in_another_order() -> None:
    found = compare(job(*WHOLE), job((0, 0, 50)), job((7, 0, 50), (8, 0, 50)))
    assert (found.repeated, found.lost, found.healthy) == (0, 0, True)
    again = compare(job(*WHOLE), job((0, 0, 50)), job((0, 0, 50), (2, 0, 50)))
    assert (again.repeated, again.lost, again.healthy) == (0, 0, False)


def test_it_is_kept_in_the_run_folder(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    found = compare(job(*WHOLE), job(*BEFORE), job((1, 0, 50), (2, 0, 50)))
    found.write(folder)
    assert read_resumption(folder) == found
    (folder / "resumption.json").write_text("{")
    assert read_resumption(folder) is None


@pytest.mark.parametrize("killed", [False, True])
def test_a_job_whose_order_is_another_in_every_run_is_not_judged(killed: bool) -> None:
    """An unseeded split: what the interrupted job drew from its first epoch on is no repetition that the resume has made."""
    found = compare(job(*WHOLE), job((7, 0, 50), (8, 0, 20)), job((9, 0, 50), (10, 0, 50)), killed=killed)

    assert found.trouble.startswith("the interrupted job drew other samples than the uninterrupted one")
    assert (found.repeated, found.lost) == (0, 0)


def test_a_job_without_a_loader_can_be_healthy_when_it_resumes() -> None:
    """Its state was compared, and there are no data to compare."""
    resumption = Resumption(trouble="no DataLoader was iterated")
    bare = replace(recording(ranks=2).step().step().finished(), resumption=resumption)
    read = replace(sampled_job(ranks=2, length=100).train().recording(), resumption=resumption)

    bare_reason, reason = (
        next(one for one in examine(job, [PLUGINS.checks["DD704"]]).not_examined if one.code == "DD704")
        for job in (bare, read)
    )

    assert (bare_reason.applies, reason.applies) == (False, True)
    assert bare_reason.reason == "the data of the resumed job were not compared: no DataLoader was iterated"


def test_without_training_there_is_a_reason() -> None:
    untrained = sampled_job(ranks=2, length=100).evaluate().recording()
    assert compare(untrained, untrained, untrained) == Resumption(
        trouble="no optimizer stepped while a loader was read"
    )
