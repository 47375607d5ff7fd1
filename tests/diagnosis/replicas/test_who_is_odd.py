"""Who is odd where no majority tells: who has not loaded what the others have, or has passed a step over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, Finding
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergences
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import StateLoaded, Wrapped
from distdoctor.recording.trace.layout import TensorFlag
from distdoctor.testing.gradients import trained_job

LOAD = "train.py:20 resume"


def first_of(recording: Recording) -> Finding:
    return examine(recording, PLUGINS.checks.values()).findings[0]


def loaded(what: str) -> StateLoaded:
    return StateLoaded(what, ("Net",), own=3)


def test_the_rank_that_loaded_no_optimizer_state_is_odd_and_the_load_is_the_place() -> None:
    job = trained_job(2).initial().note(loaded("optimizer"), only=[0], site=LOAD)
    found = first_of(job.step(state={1: 1}).step(state={1: 1}, params={1: 1}).recording())
    assert (found.code, found.ranks, found.place.line) == ("DD205", (1,), 20)


def test_the_rank_that_loaded_no_weights_is_odd_even_where_most_did_not() -> None:
    job = trained_job(3).note(loaded("module"), only=[0], site=LOAD).initial({1: 1, 2: 1})
    found = first_of(job.step(params={1: 1, 2: 1}).recording())
    assert (found.code, found.ranks) == ("DD201", (1, 2))


@pytest.mark.parametrize(("unseen", "odd"), [([0], (1, 2, 3)), ([], (3,))])
def test_the_fewer_among_those_on_record_are_not_odd_where_who_left_nothing_may_be_on_their_side(
    unseen: list[int], odd: tuple[int, ...]
) -> None:
    whole = trained_job(4).initial().step().step(params={3: 1}).recording()
    seen = {rank: log for rank, log in whole.ranks.items() if rank not in unseen}
    found = first_of(replace(whole, ranks=seen))
    assert found.ranks == odd


@pytest.mark.parametrize("by", [[0, 1], []])
def test_a_load_on_every_rank_or_on_none_breaks_no_tie(by: list[int]) -> None:
    job = trained_job(2).note(loaded("module"), only=by, site=LOAD).initial({1: 1})
    assert first_of(job.step(params={1: 1}).recording()).ranks == (0, 1)


@pytest.mark.parametrize("first_stage", [[0, 1], []])
def test_of_two_stages_the_load_before_the_second_one_counts(first_stage: list[int]) -> None:
    job = trained_job(2).note(loaded("optimizer"), only=first_stage, site="train.py:9 main").initial()
    job.note(replace(loaded("optimizer"), step=48), only=[0], site=LOAD)
    found = first_of(job.step(state={1: 1}).step(state={1: 1}, params={1: 1}).recording())
    assert (found.code, found.ranks, found.place.line) == ("DD205", (1,), 20)


def test_a_load_after_the_first_step_breaks_no_tie() -> None:
    job = trained_job(2).initial().step(state={1: 1}).note(replace(loaded("optimizer"), step=1), only=[0], site=LOAD)
    found = first_of(job.step(state={1: 1}, params={1: 1}).recording())
    assert (found.code, found.ranks) == ("DD205", (0, 1))


SOURCE = """\
def gradients(self, inputs):
    loss = self.net(inputs).mean()
    return torch.autograd.grad(loss, self.parameters)


def update(self, inputs):
    for parameter, gradient in zip(self.parameters, self.gradients(inputs)):
        parameter.grad = gradient
    self.optimizer.step()
"""


@pytest.mark.parametrize(("passes", "line"), [(0, 3), (1, 9)])
def test_gradients_taken_without_backward_are_told_at_the_line_that_takes_them(passes: int, line: int) -> None:
    job = trained_job(2).initial()
    job.step(grads={1: 1}, params={1: 1}, synced=1, backwards=passes, site="train.py:9 update")
    found = first_of(replace(job.recording(), sources={"/job/train.py": SOURCE}))
    assert (found.code, found.ranks, found.confidence, found.place.line) == ("DD202", (0, 1), CERTAIN, line)
    assert ("none was seen" in found.why) == (passes == 0)


def test_a_rank_that_steps_a_pass_later_has_skipped_a_step() -> None:
    job = trained_job(2).initial().step()
    counts = {0: 2, 1: 1}
    found = first_of(job.step(grads={1: 1}, params={1: 1}, synced=counts, backwards=counts).recording())
    assert (found.code, found.ranks, found.confidence) == ("DD210", (0,), CERTAIN)
    assert found.title == "step 2: rank 1 took an optimizer step that rank 0 skipped"


def test_gradients_changed_after_as_many_passes_are_no_skipped_step() -> None:
    job = trained_job(2).initial().step()
    assert first_of(job.step(grads={1: 1}, params={1: 1}).recording()).code == "DD202"


@pytest.mark.parametrize(("unfreezes", "line"), [(1, 3), (2, 8)])
def test_the_only_line_that_unfreezes_is_the_place_where_another_function_wraps(unfreezes: int, line: int) -> None:
    more = "        parameter.requires_grad = True\n" if unfreezes == 2 else "        pass\n"
    source = (
        "def unfreeze(model):\n    for parameter in model.parameters():\n        parameter.requires_grad_(True)\n"
        f"    for parameter in model.buffers():\n{more}\n"
        "def main():\n    model = DistributedDataParallel(build())\n    train(model)\n"
    )
    job = trained_job(2, wrapped=False, flags={"head.weight": int(TensorFlag.OUTSIDE)})
    job.note(Wrapped((0, 1)), site="train.py:8 main").initial()
    job.step(grads={1: 1}, params={1: 1}, names=["head.weight"])
    found = first_of(replace(job.recording(), sources={"/job/train.py": source}))
    assert (found.code, found.place.line) == ("DD219", line)


def test_a_step_that_only_ranks_of_one_version_looked_at_is_no_reunion() -> None:
    """A rank that is short of time for looks leaves some out, and the others agree in those."""
    apart = {0: 1}
    job = trained_job(3).initial().step().step(only=[1, 2])
    job.step(params=apart, skip=4).step(before=apart, params=apart, skip=8).step(only=[1, 2])

    (found,) = ReplicaDivergences.of(job.recording()).found
    assert (found.odd, found.agreed, found.step) == ((0,), 1, 7)


def test_versions_that_are_equal_again_have_met() -> None:
    apart = {0: 1}
    job = trained_job(3).initial().step().step(params=apart).step(before=apart, params=apart).step(only=[0, 2])
    job.step(params=apart).step(before=apart, params=apart).step()

    assert ReplicaDivergences.of(job.recording()).found == ()
