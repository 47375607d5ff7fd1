"""Loaders that run out early: the line that deals out the shares comes before the loop."""

from __future__ import annotations

from dataclasses import replace

from sick import PLUGINS

from distdoctor.diagnosis.finding import Finding
from distdoctor.testing import recording

SAMPLER = """class TokenBatches(Sampler):
    def batches(self):
        order = permuted(self.lengths)
        return self.fill(order[self.rank :: self.world])
"""
MINE = """def main(rank, world_size):
    rows = read()[rank::world_size]
    train(Rows(rows))


class Rows(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)
"""


def told(text: str, sampler: str = "BatchSampler>SequentialSampler") -> Finding:
    script = recording(ranks=4)
    for step in range(4):
        others = [0, 1, 3] if step == 3 else range(4)
        sites = {"loop_site": "train.py:30 train", "made_site": "train.py:22 main"}
        script.draw(others, batch_size=8, sampler=sampler, dataset="Rows", **sites)
        script.collective("all_reduce", [25600], native=True, only=others, site="train.py:33 train").step(others)
    run = script.exhausted().collective("barrier", site="train.py:60 main").live()
    (finding,) = PLUGINS.checks["DD111"].look(replace(run, sources={"/job/train.py": text}))
    return finding


def test_the_share_that_a_sampler_of_the_users_takes_comes_first() -> None:
    finding = told(SAMPLER, "TokenBatches")

    assert (finding.place.line, finding.places[0].site.line) == (4, 4)
    assert finding.places[-1].site.line == 30


def test_the_share_that_the_dataset_is_given_comes_first() -> None:
    assert told(MINE).place.line == 2


def test_the_loop_is_the_place_where_the_source_shows_no_share() -> None:
    assert told("rows = read()\n").place.line == 30
