"""Ranks part by a flag that they are called with: told is who calls with it, not the condition that only asks for it."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.testing import recording

PATH = "/job/train.py"
SOURCE = """\
class Trainer:
    def __init__(self):
        self.gpu_id = int(os.environ["LOCAL_RANK"])

    def run_batch(self, batch, train):
        loss = self.model(batch)
        if train:
            loss.backward()
        if not train:
            dist.all_reduce(loss)
        return loss

    def run_epoch(self, loader, train=True):
        for batch in loader:
            self.run_batch(batch, train)

    def train(self):
        for epoch in range(9):
            self.run_epoch(self.train_loader)
            if self.test_loader and self.gpu_id == 0:
                self.run_epoch(self.test_loader, train=False)
"""
STEP = (PATH, (15, 15, 12, 40), "run_epoch")


def told(*, chained: bool) -> Finding:
    script = recording(ranks=2).source("train.py", SOURCE)
    train = {"chain": [(PATH, (8, 8, 12, 27), "run_batch"), STEP, (PATH, (19, 19, 12, 45), "train")]}
    evaluate = {"chain": [(PATH, (10, 10, 12, 33), "run_batch"), STEP, (PATH, (21, 21, 16, 60), "train")]}
    for _ in range(4):
        script.collective("all_reduce", [64], site="train.py:8 run_batch", **(train if chained else {})).step()
    script.collective("all_reduce", [1], site="train.py:10 run_batch", only=0, **(evaluate if chained else {}))
    script.collective("all_reduce", [64], site="train.py:8 run_batch", **(train if chained else {}))
    return examine(script.live(), PLUGINS.checks.values()).findings[0]


def test_an_evaluation_on_one_rank_is_told_with_the_condition_around_its_call() -> None:
    finding = told(chained=True)

    assert (finding.code, finding.ranks, finding.place.line, finding.place.function) == ("DD112", (0,), 20, "train")
    assert finding.title.startswith("all_reduce #5 is called only under `if self.test_loader and self.gpu_id == 0:`")
    assert finding.prescriptions[0].change == (
        "let every rank come to the all_reduce at train.py:10: move what leads there, or the all_reduce itself, out of "
        "`if self.test_loader and self.gpu_id == 0:` (train.py:20)"
    )


@pytest.mark.parametrize("chained", [True, False])
def test_two_calls_of_the_same_operation_are_no_mismatched_operations(chained: bool) -> None:
    assert told(chained=chained).code != "DD102"


def test_a_question_about_the_rank_around_a_helper_of_another_object_is_answered_by_all() -> None:
    source = """\
class Panel:
    def row(self):
        return {name: float(one.compute()) for name, one in self.metrics.items()}
    def refresh(self, step):
        return str(self.row())
class Session:
    def train_step(self):
        self.loss(self.batch()).backward()
    def after_step(self, step):
        if self.rank == 0:
            print(self.panel.refresh(step))
    def fit(self):
        for step in range(40):
            self.train_step()
            self.after_step(step)
"""
    script = recording(ranks=2).source("train.py", source)
    for _ in range(6):
        script.collective("all_reduce", [8], site="train.py:8 train_step").step()
    script.collective("barrier", site="train.py:3 <dictcomp>", only=0)
    script.collective("all_reduce", [8], site="train.py:8 train_step", only=1)
    checks = [check for check in PLUGINS.checks.values() if check.family == "hang"]
    (finding,) = examine(script.live(), checks, live=True).findings

    assert (finding.code, finding.ranks) == ("DD101", (0,))
    assert (10, "decides: `if self.rank == 0`") in [(place.site.line, place.role) for place in finding.places]
    assert finding.prescriptions[0].change.startswith("call what train.py:11 calls on every rank: take it out of")


DECORATED = """\
def rank_zero_only(fn):
    def wrapped(*args):
        if dist.get_rank() == 0:
            return fn(*args)
    return wrapped

class Trainer:
    @cached_property
    def tokens(self):
        dist.all_gather_object(counts, self.local)

    def fit(self):
        for batch in self.batches:
            self.model(batch).backward()
        self.callback.on_epoch_end(self)

class Throughput:
    @rank_zero_only
    def on_epoch_end(self, trainer):
        seen = trainer.tokens
"""


def test_of_two_ranks_the_one_that_a_condition_further_out_names_is_the_odd_one() -> None:
    """The collective hides in a property that a function for rank 0 alone reads: nothing in its own line asks for the rank."""
    script = recording(ranks=2).source("train.py", DECORATED)
    step = {"chain": [(PATH, (14, 14, 12, 44), "fit")]}
    reads = {
        "chain": [
            (PATH, (10, 10, 8, 55), "tokens"), (PATH, (20, 20, 15, 29), "on_epoch_end"), (PATH, (4, 4, 19, 28), "wrapped"),
            (PATH, (15, 15, 8, 41), "fit"),
        ]
    }  # fmt: skip
    for _ in range(4):
        script.collective("all_reduce", [64], site="train.py:14 fit", native=True, **step).step()
    script.collective("all_gather", [1], site="train.py:10 tokens", only=0, **reads)
    script.collective("all_reduce", [64], site="train.py:14 fit", native=True, only=1, **step)

    finding = examine(script.live(), PLUGINS.checks.values()).findings[0]

    assert (finding.code, finding.ranks, str(finding.confidence)) == ("DD101", (0,), "likely")
    assert 3 in {place.site.line for place in finding.places}
