"""Where an argument, an object or a condition comes from, as the source shows it."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.given_values import (
    called_from,
    context_around,
    deciding_test,
    given_at,
    given_to_sampler,
    sampler_made,
    stored_before,
)
from distdoctor.diagnosis.source.rank_values import rank_local_way
from distdoctor.diagnosis.source.schedules import schedule_made_after
from distdoctor.recording.source_line import SourceLine

SAMPLER = """class Data:
    def __init__(self, cfg, rank):
        self.seed = cfg.seed + rank
        self.size = len(cfg.rows)

    def sampler(self, rows):
        return DistributedSampler(rows, seed=self.seed)

    def loader(self, rows):
        return DataLoader(rows, 8, sampler=self.sampler(rows))


def plain(rows, seed):
    sampler = DistributedSampler(rows, seed=seed)
    return DataLoader(rows, 8, sampler=sampler)


def main(cfg):
    local_seed = cfg.seed + 1000 * dist.get_rank()
    return plain(cfg.rows, local_seed)


def several(rows, fast):
    sampler = DistributedSampler(rows, seed=1)
    if fast:
        sampler = RandomSampler(rows)
    return DataLoader(rows, 8, sampler=sampler)
"""


def at(line: int, function: str = "main") -> SourceLine:
    return SourceLine("train.py", line, function)


def rows(found: list[tuple[SourceLine, str]]) -> list[tuple[int, str]]:
    return [(site.line, text) for site, text in found]


@pytest.mark.parametrize(
    ("loader", "way"),
    [
        (10, [(7, "self.seed"), (3, "cfg.seed + rank")]),  # through a method and an attribute
        (15, [(14, "seed"), (20, "local_seed"), (19, "cfg.seed + 1000 * dist.get_rank()")]),  # through a parameter
        (27, []),  # two samplers: nobody knows which
        (3, []),  # no loader
    ],
)
def test_the_seed_of_a_loaders_sampler_is_followed_to_where_it_is_made(loader: int, way: list[tuple[int, str]]) -> None:
    assert rows(given_to_sampler({"train.py": SAMPLER}, at(loader), "seed")) == way


def test_an_argument_that_the_sampler_is_not_given_has_no_line() -> None:
    assert given_to_sampler({"train.py": SAMPLER}, at(15), "rank") == []


def test_a_keyword_is_followed_through_the_variable_that_holds_it() -> None:
    source = "limit = timedelta(seconds=5)\ndist.new_group(ranks, timeout=limit)\n"

    assert rows(given_at({"train.py": source}, at(2), "timeout")) == [(2, "limit"), (1, "timedelta(seconds=5)")]


NO_SYNC = """def context(self, i):
    sync = (i + 1) % self.accum == 0
    return nullcontext() if sync else self.model.no_sync()


def step(self, i):
    with self.model.no_sync():
        loss(i)


def train(self):
    for i in range(4):
        step(self, i)
        context(self, i)
    context(self, 5)
"""


def test_what_decides_on_no_sync_is_shown_with_what_it_is_made_of() -> None:
    found = deciding_test({"train.py": NO_SYNC}, at(3, "context"), "no_sync")

    assert rows(found) == [(3, "sync"), (2, "(i + 1) % self.accum == 0")]


def test_a_call_under_no_condition_has_no_test() -> None:
    assert deciding_test({"train.py": NO_SYNC}, at(7, "step"), "no_sync") == []


def test_a_function_that_is_called_once_has_a_caller_and_one_that_is_called_twice_has_none() -> None:
    assert called_from({"train.py": NO_SYNC}, at(8, "step")) == at(13, "train")
    assert called_from({"train.py": NO_SYNC}, at(2, "context")) == SourceLine()
    assert called_from({}, at(8, "step")) == SourceLine()


RATES = """def train(opt, reader, scheduler, val, total):
    for step in range(80):
        progress = reader.taken / len(reader.rows)
        for group in opt.param_groups:
            group["lr"] = 0.1 * multiplier(progress)
        share = step / total
        for group in opt.param_groups:
            group["lr"] = 0.1 * share
"""


def test_a_rate_is_followed_to_what_each_rank_reads_for_itself() -> None:
    assert rows(rank_local_way({"train.py": RATES}, at(5, "train"))) == [(3, "reader.taken / len(reader.rows)")]


def test_a_rate_is_followed_into_the_function_that_reads_it() -> None:
    read = "def done(data):\n    return torch.tensor(data.taken).item()\n"
    text = read + RATES.replace("reader.taken / len(reader.rows)", "done(reader)")
    assert rows(rank_local_way({"train.py": text}, at(7, "train"))) == [
        (5, "done(reader)"),
        (2, "torch.tensor(data.taken).item()"),
    ]


def test_a_rate_that_counts_steps_has_no_such_line() -> None:
    assert rank_local_way({"train.py": RATES}, at(8, "train")) == []


RESUMED = """class Trainer:
    def __init__(self):
        self.scheduler = StepLR(self.optimizer, 3)

    def make(self, total):
        return LambdaLR(self.optimizer, lambda step: step / total)

    def load(self):
        state = torch.load("last.pt")
        self.optimizer.load_state_dict(state)
        self.scheduler = self.make(100)
        self.rows = Rows(state)

    def load_all(self):
        state = torch.load("last.pt")
        self.scheduler.load_state_dict(state)
"""


def test_a_schedule_that_is_made_below_a_load_is_found_through_the_method_that_makes_it() -> None:
    assert schedule_made_after({"train.py": RESUMED}, at(9, "load")).line == 11
    assert not schedule_made_after({"train.py": RESUMED}, at(15, "load_all"))


CONTEXTS = """class Trainer:
    def sync(self, last):
        return contextlib.nullcontext()

    def update(self, window):
        for number, batch in enumerate(window):
            with timed("step"):
                with self.sync(number == len(window) - 1):
                    loss = self.model(batch)
                    loss.backward()
            with nullcontext() if number else self.model.no_sync():
                loss.backward()
            with autocast():
                loss.backward()
"""


@pytest.mark.parametrize(
    ("line", "way"),
    [
        (10, [(8, "self.sync(number == len(window) - 1)"), (3, "contextlib.nullcontext()")]),
        (12, [(11, "nullcontext() if number else self.model.no_sync()")]),
        (14, []),
    ],
)
def test_the_context_that_a_line_stands_in_is_followed_to_where_it_is_made(
    line: int, way: list[tuple[int, str]]
) -> None:
    assert rows(context_around({"train.py": CONTEXTS}, at(line), "nullcontext", "no_sync")) == way


def test_all_that_a_schedule_was_before_it_moves_is_told() -> None:
    text = (
        "def main(opt):\n    plan = cosine(opt, 100)\n    opt, plan = prepare(opt, plan)\n"
        "    for _ in range(9):\n        plan.step()\n        opt.plan.step()\n"
    )
    site = SourceLine("/job/train.py", 5, "main")

    made = [(line.line, text) for line, text in stored_before({"/job/train.py": text}, site, "step")]
    assert made == [(2, "cosine(opt, 100)"), (3, "prepare(opt, plan)")]
    assert stored_before({"/job/train.py": text}, SourceLine("/job/train.py", 6, "main"), "step") == []


@pytest.mark.parametrize(
    ("otherwise", "line"),
    [("None", 3), ("ElasticSampler(data)", 3), ("ElasticSampler(data, shuffle=False)", 0)],
    ids=["or none", "one that shuffles", "one of two"],
)
def test_where_a_loaders_sampler_is_made(otherwise: str, line: int) -> None:
    source = f"""\
def main(data, distributed):
    if distributed:
        sampler = DistributedSampler(data, shuffle=False)
    else:
        sampler = {otherwise}
    return DataLoader(data, batch_size=4, sampler=sampler)
"""
    assert sampler_made({"t.py": source}, SourceLine("t.py", 6), shuffles=False).line == line
