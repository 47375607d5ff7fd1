"""What the stream of gradients writes, how often it looks, and that it leaves the host alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from jobs import replicas as jobs
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _DDPSink

from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.probe.gradients.backwards import roots_of
from distdoctor.probe.gradients.tracked import FREE_SECONDS, LONGEST, SHARE, Tracked
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import Wrapped
from distdoctor.recording.trace.layout import MORE_RINGS, TensorFlag, plan

job = pytest.mark.job


def rows(recording: Recording, rank: int = 0) -> list[Any]:
    return [update for update in Gradients.of(recording).ranks[rank].updates if update.digested]


@job
def test_parameters_have_the_names_and_shapes_that_the_user_gave_them() -> None:
    recording, _ = jobs.watched(jobs.plain, norm=True)
    tensors = Gradients.of(recording).ranks[1].tensors.values()
    assert [t.name for t in tensors if t.flags & TensorFlag.BUFFER] == [
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    parameters = [tensor for tensor in tensors if not tensor.flags & TensorFlag.BUFFER]
    assert [(t.name, t.shape, t.owner, t.agree) for t in parameters] == [
        ("body.weight", "[32, 20]", "Linear", (0, 1)),
        ("body.bias", "[32]", "Linear", (0, 1)),
        ("norm.weight", "[32]", "BatchNorm1d", (0, 1)),
        ("norm.bias", "[32]", "BatchNorm1d", (0, 1)),
        ("head.weight", "[10, 32]", "Linear", (0, 1)),
        ("head.bias", "[10]", "Linear", (0, 1)),
    ]


@job
def test_every_step_is_there_in_a_deep_look_with_loss_norm_and_line() -> None:
    recording, _ = jobs.watched(jobs.plain)
    for rank in (0, 1):
        updates = rows(recording, rank)
        assert [update.step for update in updates] == list(range(jobs.STEPS + 1))
        for update in updates[1:]:
            assert 1 < update.value("loss") < 4
            assert update.value("norm") > 0
            assert (update.number("synced"), update.number("unsynced"), update.number("backwards")) == (1, 0, 1)
            assert update.roots == "NllLoss mean"
            assert update.site.function == "train"
    assert rows(recording, 0)[1].value("loss") != rows(recording, 1)[1].value("loss")


@job
def test_passes_are_counted_where_the_last_layer_is_never_used() -> None:
    recording, _ = jobs.watched(jobs.unused_branch)
    for rank in (0, 1):
        assert [update.number("backwards") for update in rows(recording, rank)[1:]] == [1] * jobs.STEPS


@job
def test_who_should_agree_is_told_by_placements_where_there_are_some() -> None:
    by_job = {
        jobs.sharded: {(0,), (1,)},
        jobs.replicated_and_sharded: {(0, 1)},
        jobs.tensor_parallel: {(0,), (1,), (0, 1)},
    }
    for target, agreements in by_job.items():
        recording, _ = jobs.watched(target)
        found = {t.agree for rank in (0, 1) for t in Gradients.of(recording).ranks[rank].tensors.values()}
        assert found == agreements, target


@job
def test_an_optimizer_that_steps_inside_another_is_a_part_of_that_one() -> None:
    recording, _ = jobs.watched(jobs.split_optimizer)
    gradients = Gradients.of(recording)
    assert {update.optimizer for update in gradients.every_update()} == {1}
    assert {len(own.tensors) for own in gradients.ranks.values()} == {4}


@job
def test_two_optimizers_are_told_apart() -> None:
    recording, _ = jobs.watched(jobs.adversaries)
    every = Gradients.of(recording).ranks[0].tensors.values()
    tensors = [
        t for t in every if not t.flags & TensorFlag.COPY
    ]  # what the second one trains was beside the first, till then
    assert [(t.optimizer, t.shape) for t in tensors] == [(1, "[1, 20]"), (1, "[1]"), (2, "[20, 4]"), (2, "[20]")]


@job
def test_without_deep_looks_a_short_job_is_still_looked_at_from_its_first_step() -> None:
    recording, _ = jobs.watched(jobs.plain, deep=False)
    steps = [update.step for update in rows(recording)]
    assert steps[:5] == [0, 1, 2, 3, 4]


def odd_tensors(rank: int, world_size: int) -> str:
    """Sparse gradients, an empty parameter, a half-precision one, a parameter without a module, a strange learning rate."""
    embedding = nn.Embedding(10, 4, sparse=True)
    free = [nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(3, dtype=torch.bfloat16))]
    optimizer = torch.optim.SGD([*embedding.parameters(), *free], lr=torch.tensor(0.1))
    for _ in range(3):
        optimizer.zero_grad()
        (embedding(torch.tensor([1, 2])).sum() + free[1].sum() + free[0].sum()).backward()
        optimizer.step()
    return jobs.digest_of_training(embedding)


@job
def test_what_cannot_be_digested_is_left_out_and_the_rest_goes_on() -> None:
    recording, _ = jobs.watched(odd_tensors)
    assert 3 in {u.step for u in rows(recording)}
    names = [t.name for t in Gradients.of(recording).ranks[0].tensors.values()]
    assert names == ["weight", "optimizer 1 group 0 parameter 1", "optimizer 1 group 0 parameter 2"]


def failing_probe(rank: int, world_size: int) -> str:
    from distdoctor.probe.tensors.digests import Digester

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("planted")

    Digester.digests = broken  # type: ignore[method-assign]
    return jobs.plain(rank, world_size)


@job
def test_a_stream_that_fails_notes_it_and_leaves_training_and_the_other_streams_alone() -> None:
    with pytest.raises(AssertionError, match="gradients: RuntimeError: planted"):
        jobs.watched(failing_probe)  # it asserts that there is no trouble


def raising_step(rank: int, world_size: int) -> int:
    """An optimizer's step is left by an exception, and the next one is an ordinary step again."""
    model = DistributedDataParallel(jobs.Net())
    optimizer, batches = jobs.adam(model), jobs.Batches(rank)
    for step in range(4):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()

        def closure(step: int = step) -> float:
            if step == 1:
                raise KeyError("planted")
            return 0.0

        try:
            optimizer.step(closure)
        except KeyError:
            continue
    dist.barrier()
    return step


@job
def test_a_step_that_raises_is_no_trouble() -> None:
    recording, _ = jobs.watched(raising_step)
    assert [update.step for update in rows(recording)] == [0, 1, 2, 3]  # the second call made no step


@job
def test_a_wrapper_is_noted_with_its_ranks_and_what_it_reduces() -> None:
    recording, _ = jobs.watched(jobs.frozen_body, ranks=3)
    own = Gradients.of(recording).ranks[2]
    (event,) = own.events(Wrapped)
    assert (event.ranks, event.reduced, event.held) == ((0, 1, 2), 2, 4)


def test_looks_take_their_share_of_the_time_and_no_more() -> None:
    tracked = Tracked(1, 0)
    tracked.pace, tracked.spent_in_all = 0.010, FREE_SECONDS
    for cost, interval in ((10e-6, 1), (30e-6, 1), (31e-6, 2), (1e-3, 64), (10.0, LONGEST)):
        tracked.cost, tracked.spent = 0.0, cost
        tracked.afford()
        assert tracked.interval == interval
        assert interval == LONGEST or cost / (interval * tracked.pace) <= SHARE


def test_ranks_with_different_intervals_look_at_common_steps() -> None:
    fast, slow = Tracked(1, 0), Tracked(1, 0)
    fast.interval, slow.interval = 2, 16
    steps = range(1, 200)

    assert {step for step in steps if slow.wants(step)} <= {step for step in steps if fast.wants(step)}
    assert [step for step in steps if slow.wants(step)][:8] == [1, 2, 3, 4, 8, 16, 32, 48]


def test_a_new_stage_is_looked_at_like_a_start() -> None:
    """Layers that are unfrozen in the middle of a training, whatever the looks have cost until then."""
    body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    tracked = Tracked(1, 0)
    tracked.interval = LONGEST
    looked_at = []
    for step in range(1, 60):
        body.requires_grad_(step >= 40)
        optimizer.zero_grad()
        head(body(torch.ones(3, 4))).sum().backward()
        tracked.notice_stage(optimizer)
        if tracked.wants(step):
            looked_at.append(step)
        tracked.step = step
    assert looked_at == [1, 2, 3, 4, 8, 16, 32, 40, 41, 42, 43]


def test_a_trace_has_the_sections_only_where_the_stream_is_asked_for() -> None:
    names = {record.name for record, _ in MORE_RINGS["gradients"]}
    assert not names & {name for name, *_ in plan()[0]}
    assert names <= {name for name, *_ in plan({"gradients"})[0]}
    assert plan({"gradients"})[1] < 4 << 20


def _wrapper() -> SimpleNamespace:
    """What DistributedDataParallel's own operation asks of its wrapper."""
    return SimpleNamespace(_ddp_sink_clone=False)


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (lambda loss: loss, "NllLoss mean"),
        (lambda loss: loss / 4, "div 4;NllLoss mean"),
        (lambda loss: loss * 0.5 / 4, "div 4;mul 0.5;NllLoss mean"),
        (lambda loss: loss / torch.tensor(3.0), "div 3;NllLoss mean"),
        (lambda loss: _DDPSink.apply(_wrapper, torch.zeros(2), loss)[1] / 4, "div 4;NllLoss mean"),
        (lambda loss: loss.double().view(1).squeeze() * 2, "mul 2;NllLoss mean"),
        (lambda loss: (loss + 1) / 2, "div 2;Add"),
    ],
)
def test_what_stands_between_backward_and_the_loss_is_read_from_the_graph(
    scale: Callable[[torch.Tensor], torch.Tensor], words: str
) -> None:
    loss = nn.functional.cross_entropy(torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0]))

    assert roots_of(scale(loss)) == words


MASK = torch.tensor([1.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("reduced", "words"),
    [
        (lambda nll: (nll * MASK).sum() / MASK.sum(), "div 3 own;Sum"),
        (lambda nll: (MASK * nll).sum() / MASK.sum() / 4, "div 4;div 3 own;Sum"),
        (lambda nll: nll[MASK.bool()].sum() / MASK.sum(), "div 3 own;Sum"),
        (lambda nll: nll.sum() / nll.numel(), "div 4 own;Sum"),
        (lambda nll: (nll @ MASK) / MASK.sum(), "div 3 own;Dot"),
        (lambda nll: (nll * MASK).sum() / 12, "div 12;Sum"),  # of a window of four
    ],
)
def test_a_sum_that_is_divided_by_what_its_terms_weigh_is_known_for_a_mean_of_its_own(
    reduced: Callable[[torch.Tensor], torch.Tensor], words: str
) -> None:
    targets = torch.tensor([0, 1, 2, 0])
    nll = nn.functional.cross_entropy(torch.randn(4, 3, requires_grad=True), targets, reduction="none")
    assert roots_of(reduced(nll)) == words
    assert roots_of(reduced(nll), weighs=False) == words.replace(" own", "")


def test_a_summed_loss_that_is_divided_by_the_targets_that_count_is_a_mean_of_its_own() -> None:
    targets = torch.tensor([0, -100, 2, -100])
    loss = nn.functional.cross_entropy(torch.randn(4, 3, requires_grad=True), targets, reduction="sum")
    assert roots_of(loss / (targets != -100).sum()) == "div 2 own;NllLoss sum"


def test_a_step_counts_for_what_it_works_and_not_for_what_it_waits() -> None:
    tracked = Tracked(1, 0)
    tracked.paced()
    time.sleep(0.2)
    tracked.paced()
    assert 0 < tracked.pace < 0.1
