"""Data that their constructor shuffles by a default generator: told where nothing can have seeded it before."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE, WARNING
from distdoctor.lint.examine import examine

DATA = """
import random
from torch.utils.data import Dataset
class Rows(Dataset):
    def __init__(self, rows, mixes=True):
        self.rows = list(rows)
        self.mix(mixes)
    def mix(self, mixes):
        {mixed}
"""
MAIN = """
import random
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from rows import Rows
def make(path):
    return Rows(open(path))
def main():
    dist.init_process_group()
    {first}
    data = make("a.txt")
    {then}
    for epoch in range(3):
        train(DataLoader(data, sampler={sampler}), epoch)
main()
"""
TRAINER = """
import torch.distributed as dist
from transformers import Trainer
from rows import Rows
Trainer(model=make(), train_dataset=Rows(open("a.txt"))).train()
dist.barrier()
"""
SHUFFLE = "random.shuffle(self.rows)"
SAMPLER = "DistributedSampler(data, shuffle=False)"


def seen(mixed: str = SHUFFLE, first: str = "", then: str = "", sampler: str = SAMPLER, more: str = "") -> list[object]:
    main = MAIN.format(first=first, then=then, sampler=sampler)
    findings = examine({"main.py": main + more, "rows.py": DATA.format(mixed=mixed)}).findings
    return [(one.severity, one.confidence, one.place.line) for one in findings if one.code == "DD313"]


@pytest.mark.parametrize("then", ["", "torch.manual_seed(3)"], ids=["never seeded", "seeded too late"])
@pytest.mark.parametrize("mixed", [SHUFFLE, "self.rows = random.sample(self.rows, 9)"])
def test_data_that_are_shuffled_before_anything_is_seeded_are_told(mixed: str, then: str) -> None:
    assert seen(mixed, then=then) == [(WARNING, LIKELY, 9)]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("random.shuffle(names)", True),
        ("names = random.sample(names, 9)", True),
        ("random.shuffle(others)", False),
        ("names.sort()", False),
        ("torch.manual_seed(3); random.shuffle(names)", False),
    ],
)
def test_what_data_are_given_may_be_shuffled_before(lines: str, told: bool) -> None:
    main = MAIN.format(first="", then="", sampler=SAMPLER).replace("return Rows(open(path))", "return Rows(names)")
    main = main.replace("def make(path):", f"def make(path):\n    names = list(open(path))\n    {lines}")

    findings = examine({"main.py": main, "rows.py": DATA.format(mixed="pass")}).findings

    assert [one.code for one in findings] == (["DD313"] if told else [])


def test_a_shuffle_that_is_an_option_is_a_note() -> None:
    assert seen("if mixes: random.shuffle(self.rows)") == [(NOTE, POSSIBLE, 9)]


def test_a_trainer_deals_out_samples_in_a_job_of_several_ranks_only() -> None:
    data = DATA.format(mixed=SHUFFLE)

    several = examine({"main.py": TRAINER, "rows.py": data}).findings
    alone = examine({"main.py": TRAINER.replace("torch.distributed", "sys"), "rows.py": data}).findings

    assert [one.code for one in several] == ["DD313"]
    assert alone == ()


@pytest.mark.parametrize(
    "about",
    [
        {"first": "torch.manual_seed(3)"},
        {"first": "seed_everything(3)"},
        {"more": "def elsewhere():\n    random.seed(3)\n"},
        {"mixed": "random.Random(3).shuffle(self.rows)"},
        {"mixed": "random.shuffle(self.rows); dist.broadcast_object_list(self.rows)"},
        {"sampler": "None"},
        {"then": "data.rows.sort()", "mixed": "pass"},
    ],
    ids=["seeded", "by a library", "who knows when", "a generator", "handed on", "no shares", "not shuffled"],
)
def test_data_that_all_ranks_may_order_alike_are_fine(about: dict[str, str]) -> None:
    assert seen(**about) == []
