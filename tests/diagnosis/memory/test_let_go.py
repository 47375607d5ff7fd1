"""What grows for a while and is let go: the moves of an episode, features of an epoch, a cache that asks for its length."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, POSSIBLE, Confidence
from distdoctor.diagnosis.source.let_go import is_let_go
from distdoctor.recording.recording import SourceLine
from distdoctor.testing.memory import MIB, memory_job

CHECK = PLUGINS.checks["DD401"]
EPISODES = """def train():
    for episode in range(9):
        moves = []
        for move in range(100):
            moves.append(policy(state))
            optimizer.step()
"""
KEPT = EPISODES.replace("        moves = []\n", "").replace("def train():\n", "def train():\n    moves = []\n")


def graph(olds: list[int], saved: int) -> dict[int, dict[str, int]]:
    steps = (3, 6, 9, 12, 18, 24)
    return {
        step: {"nodes": old + 9, "old_nodes": old, "saved": 8 + saved * old, "bytes": 4}
        for step, old in zip(steps, olds, strict=False)
    }


def told(looks: dict[int, dict[str, int]], source: str) -> list[Confidence]:
    job = memory_job(2).trains(24).holds("moves", "train.py:6 train", looks)
    return [one.confidence for one in examine(job.recording(sources={"/job/train.py": source}), [CHECK]).findings]


def test_a_graph_that_waits_for_its_backward_pass_is_no_leak() -> None:
    growing, ended = [9, 18, 27, 36, 54, 72], [9, 18, 27, 36, 0, 18]

    assert told(graph(growing, saved=64), KEPT) == [CERTAIN]
    assert told(graph(growing, saved=64), EPISODES) == [POSSIBLE]
    assert told(graph(ended, saved=64), EPISODES) == []


def test_a_graph_that_has_become_larger_than_what_is_counted_was_not_let_go() -> None:
    counted = graph([411, 822, 1233, 1644], saved=64)
    counted |= {
        step: {"nodes": 4000, "old_nodes": old, "saved": 9000, "bytes": 4} for step, old in ((18, 2328), (24, 684))
    }

    assert told(counted, KEPT) == [CERTAIN]


def test_a_graph_that_went_through_backward_is_kept_for_nothing_even_if_it_is_let_go() -> None:
    assert told(graph([9, 18, 27, 36, 54, 72], saved=0), EPISODES) == [CERTAIN]
    assert told(graph([9, 18, 27, 36, 0, 18], saved=0), EPISODES) == [CERTAIN]


@pytest.mark.parametrize(("source", "sure"), [(KEPT, LIKELY), (EPISODES, POSSIBLE)], ids=["kept", "begun anew"])
def test_tensors_that_are_kept_until_an_epoch_ends_are_a_possibility(source: str, sure: Confidence) -> None:
    looks = {step: {"bytes": step * MIB, "tensors": step} for step in (3, 6, 9, 12, 18, 24)}

    assert told(looks, source) == [sure]


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    while True:\n        if len(seen) > 9:\n            use(seen)\n        seen.append(x)\n",
        "def f():\n    for x in y:\n        seen.append(x)\n        if full:\n            seen.clear()\n",
        "def f():\n    seen = []\n    for x in y:\n        seen.append(x)\n\nfor epoch in range(3):\n    f()\n",
    ],
)
def test_what_empties_or_limits_it_is_read_from_the_source(source: str) -> None:
    line = source[: source.index("seen.append")].count("\n") + 1

    assert is_let_go({"/a.py": source}, SourceLine("/a.py", line, "f"), "seen")


def test_what_is_made_once_is_not_let_go() -> None:
    source = "def f():\n    seen = []\n    for x in y:\n        seen.append(x)\n"

    assert not is_let_go({"/a.py": source}, SourceLine("/a.py", 4, "f"), "seen")


@pytest.mark.parametrize("told", ["sum(seen) / len(seen)", 'print(f"{len(seen)} so far")'])
def test_a_length_that_is_divided_by_or_shown_bounds_nothing(told: str) -> None:
    source = f"def f():\n    for x in y:\n        seen.append(x)\n        {told}\n"

    assert not is_let_go({"/a.py": source}, SourceLine("/a.py", 3, "f"), "seen")


RESET = """
class Metric:
    def __init__(self):
        self.reset()
    def reset(self):
        self.seen = []
    def update(self, one):
        self.seen.append(one)
def train(metric, loader):
    for one in loader:
        metric.update(one)
"""


def test_what_only_the_making_of_an_object_empties_is_not_let_go() -> None:
    line = SourceLine("/a.py", 11, "train")
    assert not is_let_go({"/a.py": RESET}, line, "metric.seen")
    assert is_let_go({"/a.py": RESET + "    metric.reset()\n"}, line, "metric.seen")
