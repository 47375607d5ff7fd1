"""Which line puts samples in an order of the process's own."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY
from distdoctor.diagnosis.source.own_orders import own_order
from distdoctor.plugins import load
from distdoctor.testing.samples import sampled_job

DATA = """
import os
import random
import numpy as np
from random import shuffle
class Digits(Dataset):
    def __init__(self, rows):
        self.rows = rows
        self.mix()
    def mix(self):
        {mixed}
def listed(folder):
    return {listed}
def draw(pool):
    random.shuffle(pool)
data = Digits(listed("data"))
"""


@pytest.mark.parametrize(
    ("mixed", "listed", "line"),
    [
        ("random.shuffle(self.rows)", "[]", 11),
        ("shuffle(self.rows)", "os.listdir(folder)", 11),
        ("self.rows = np.random.permutation(self.rows)", "[]", 11),
        ("random.Random(3).shuffle(self.rows)", "[]", 0),
        ("pass", "random.sample(rows, 9)", 13),
        ("pass", "os.listdir(folder)", 13),
        ("pass", "sorted(os.listdir(folder))", 0),
    ],
)
def test_the_line_is_found_where_the_data_are_made_or_what_they_are_given(mixed: str, listed: str, line: int) -> None:
    found = own_order({"data.py": DATA.format(mixed=mixed, listed=listed)}, "Digits")

    assert (found.line.line if found is not None else 0) == line


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (DATA.format(mixed="random.shuffle(self.rows)", listed="[]"), True),
        (DATA.format(mixed="random.shuffle(self.rows)", listed="[]") + "torch.manual_seed(3)\n", False),
        (DATA.format(mixed="pass", listed="random.sample(rows, 9)"), False),
        (DATA.format(mixed="pass", listed="[]"), False),
    ],
    ids=["never seeded", "seeded somewhere", "given to it", "not shuffled"],
)
def test_data_that_cannot_be_compared_are_told_by_what_their_constructor_does(source: str, told: bool) -> None:
    checks = [check for check in load().checks.values() if check.code == "DD313"]
    recording = sampled_job(2).train(digest={0: "aa", 1: "bb"}).recording(sources={"/job/data.py": source})

    findings = examine(recording, checks).findings

    assert [(one.confidence, one.place.line) for one in findings] == ([(LIKELY, 11)] if told else [])
