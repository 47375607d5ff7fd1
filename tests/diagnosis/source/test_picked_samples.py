"""Where a dataset is cut into parts, and what picks their samples in another way on each rank."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.picked_samples import Cut, cut_of_data
from distdoctor.recording.source_line import SourceLine

FOLDS = """def folds(labels, k, seed):
    rng = torch.Generator().manual_seed(seed)
    buckets = [[] for _ in range(k)]
    for label in set(labels):
        index = numpy.where(labels == label)[0]
        {shuffled}
        for j, part in enumerate(numpy.array_split(index, k)):
            buckets[j].extend(part.tolist())
    return [sorted(one) for one in buckets]


def train(parts, data):
    chosen = [i for part in parts[1:] for i in part]
    mine, held = Subset(data, chosen), Subset(data, parts[0])
    return DataLoader(mine, batch_size=8)


def main(args, rank):
    train(folds(labels, 4, args.seed), data)
    train(folds(labels, 4, args.seed), data)
"""
LEARNER = """class Learner:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.labelled = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:20].tolist()

    def select(self):
        mine = self.rest()[self.rank :: self.world]
        best = top(mine, self.scores(mine))
        {together}
        return best

    def extend(self, picks):
        self.labelled = self.labelled + picks

    def train(self):
        data = Subset(self.pool, sorted(self.labelled))
        return DataLoader(data, batch_size=8)

    def run(self):
        self.train()
        self.extend(self.select())


def top(rows, scores):
    return [rows[i] for i in scores.topk(4).indices.tolist()]
"""


def cut(source: str, line: int) -> Cut:
    return cut_of_data({"train.py": source}, SourceLine("train.py", line))


def test_a_list_of_samples_is_followed_to_the_shuffle_that_each_rank_makes() -> None:
    found = cut(FOLDS.format(shuffled="numpy.random.shuffle(index)"), 15)

    assert (found.site.line, found.decides.line, found.of_shares) == (14, 6, False)


@pytest.mark.parametrize("shuffled", ["pass", "index = index[torch.randperm(len(index), generator=rng)]"])
def test_what_is_drawn_by_a_given_generator_is_no_pick_of_a_rank(shuffled: str) -> None:
    found = cut(FOLDS.format(shuffled=shuffled), 15)

    assert (found.site.line, found.way) == (14, ())


def test_what_ranks_pick_of_their_shares_is_shown_where_it_goes_into_the_dataset() -> None:
    found = cut(LEARNER.format(together="pass"), 17)

    assert (found.site.line, found.decides.line, found.of_shares) == (16, 13, True)
    assert found.way[-1][0].line == 7


def test_the_only_split_of_a_program_is_shown_for_a_loader_that_nobody_follows() -> None:
    split = "train, held = random_split(data, [90, 10])\nloader = make(train)\n"

    assert cut(split, 2).site.line == 1
    assert cut(split + split, 2) == Cut()
