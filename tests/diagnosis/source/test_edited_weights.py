"""Weights that some ranks change behind a condition on the rank."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.edited_weights import edited_on

TRAIN = """class Average:
    def update(self, model):
        for mine, theirs in zip(self.kept.parameters(), model.parameters()):
            mine.lerp_(theirs, 0.1)
            {back}


def train(model, rank, average):
    for x in data:
        optimizer.step()
        if {guard}:
            {does}
"""
BACK = "theirs.copy_(mine)"


def found(guard: str, does: str, back: str = BACK) -> tuple[int, int] | None:
    text = TRAIN.format(guard=guard, does=does, back=back)
    one = edited_on({"/job/train.py": text}, (0,), (1, 2))
    return None if one is None else (one.guard.line, one.line.line)


@pytest.mark.parametrize(
    "does",
    [
        "average.update(model)",
        "model.load_state_dict(best)",
        "model.head.weight.data.clamp_(-1, 1)",
        "nn.init.zeros_(model.head.bias)",
    ],
)
def test_the_condition_and_the_line_behind_it_are_found(does: str) -> None:
    assert found("rank == 0", does) == (11, 12)
    assert found("rank < 2", does) is None  # lets another one through
    assert found("step % 10 == 0", does) is None


@pytest.mark.parametrize(
    "does",
    [
        "total.add_(loss)",
        "optimizer.load_state_dict(best)",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "model.head.weight.grad.zero_()",
        "torch.save(model.state_dict(), path)",
    ],
)
def test_what_changes_no_weights_is_none(does: str) -> None:
    assert found("rank == 0", does) is None


def test_two_such_conditions_decide_nothing() -> None:
    assert (
        found("rank == 0", "average.update(model)\n        if rank == 0:\n            model.load_state_dict(best)")
        is None
    )


CALLBACKS = """class Best:
    def __init__(self, model):
        self.state = model.state_dict()

    def after_step(self, model, loss):
        if loss > self.best:
            model.load_state_dict(self.state)


class Printer:
    def after_step(self, model, loss):
        print(loss)


def callbacks(model, rank):
    found = []
    if rank == 0:
        found.append(Printer())
        found.append({made})
    return found


def train(model, hooks):
    for x in data:
        for hook in hooks:
            hook.after_step(model, loss)
"""


def test_the_condition_may_decide_who_has_the_object_that_changes_weights() -> None:
    one = edited_on({"/job/train.py": CALLBACKS.format(made="Best(model)")}, (0,), (1, 2))
    assert one is not None
    assert (one.guard.line, one.line.line, one.by.line) == (17, 19, 7)
    assert edited_on({"/job/train.py": CALLBACKS.format(made="Printer()")}, (0,), (1, 2)) is None
