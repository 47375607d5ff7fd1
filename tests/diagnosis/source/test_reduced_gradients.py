"""A reduction of gradients is known by what it is given, not by when it comes."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.reduced_gradients import reduces_gradients
from distdoctor.recording.source_line import SourceLine

SOURCE = """
def average(params, world):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)  # flat
    for p in params:
        dist.all_reduce(p.grad)  # each
    grads = []
    for p in params:
        grads.append(p.grad)
    joined = flatten(grads)
    dist.all_reduce(joined)  # joined
    for p in params:
        dist.all_reduce(p.data)  # weights


def outer_step(params, anchor):
    for p, old in zip(params, anchor):
        delta = old - p.data
        dist.all_reduce(delta)  # delta
        p.grad = delta
    loss = torch.ones(1)
    dist.all_reduce(loss)  # loss


class Worker:
    def sync(self):
        self.norms = [p.grad.norm() for p in self.params]
        self.weights = torch.cat([p.data.reshape(-1) for p in self.params])
        dist.all_reduce(self.weights)  # own weights
        self.grads = torch.cat([p.grad.reshape(-1) for p in self.params])
        dist.all_reduce(self.grads)  # own gradients
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("flat", True),
        ("each", True),
        ("joined", True),
        ("weights", False),
        ("delta", False),
        ("loss", False),
        ("own weights", False),
        ("own gradients", True),
    ],
)
def test_what_is_reduced_is_followed_to_what_it_is_made_of(words: str, expected: bool) -> None:
    number = next(at for at, line in enumerate(SOURCE.splitlines(), 1) if line.endswith(f"# {words}"))

    assert reduces_gradients({"/job/train.py": SOURCE}, SourceLine("/job/train.py", number, "")) is expected


def test_a_file_that_is_not_there_says_nothing() -> None:
    assert not reduces_gradients({}, SourceLine("/job/train.py", 4, ""))
