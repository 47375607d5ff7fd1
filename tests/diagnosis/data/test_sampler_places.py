"""What samplers do not agree on is shown where they are given it; work that is dealt out unevenly, where the shares are cut."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.finding import Finding
from distdoctor.diagnosis.source.sampler_calls import sampler_name
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import PassFlag
from distdoctor.testing.samples import sampled_job, share
from distdoctor.testing.timing import timed_job


def told(code: str, recording: Recording) -> Finding:
    (finding,) = PLUGINS.checks[code].look(recording)
    return finding


def lines(finding: Finding) -> list[int]:
    """The first place, then the others."""
    return [finding.place.line, *(place.site.line for place in finding.places)]


def source(sampler: str, ranks: str = "rank = dist.get_rank()") -> dict[str, str]:
    """The loader is made in line 12, of a sampler that is made in line 11."""
    above = "\n" * 8 + f"def main(data, seed):\n    {ranks}\n    sampler = {sampler}\n"
    return {"/job/train.py": above + "    loader = DataLoader(data, sampler=sampler)\n"}


def overlapping(text: dict[str, str]) -> Finding:
    orders = {rank: share(100, 2, rank, seed=rank) for rank in range(2)}
    return told(
        "DD303", sampled_job(ranks=2, length=100).train(orders=orders, seed={0: 0, 1: 1}).recording(sources=text)
    )


def test_a_seed_that_differs_is_shown_where_the_sampler_is_given_it_and_what_it_is_made_of() -> None:
    finding = overlapping(source("DistributedSampler(data, seed=own)", "own = seed + dist.get_rank()"))

    assert lines(finding) == [11, 11, 10, 12, 31]
    assert [place.role for place in finding.places[:2]] == [
        "the sampler is given `own`",
        "made of `seed + dist.get_rank()`",
    ]


def test_a_sampler_that_the_source_gives_no_seed_is_not_blamed() -> None:
    assert lines(overlapping(source("make_sampler(data)"))) == [12, 12, 31]


def misnumbered(text: dict[str, str]) -> Finding:
    return told("DD311", sampled_job(ranks=2, length=100).train(sampler_rank={0: 0, 1: 0}).recording(sources=text))


def test_a_share_that_two_ranks_draw_is_shown_where_the_sampler_is_given_its_number() -> None:
    text = source("DistributedSampler(data, num_replicas=2, rank=local)", 'local = int(os.environ["LOCAL_RANK"])')

    assert lines(misnumbered(text)) == [11, 11, 10, 12]
    assert lines(misnumbered(source("DistributedSampler(data)"))) == [12, 12]


def uneven(text: str) -> Finding:
    job = timed_job(2).steps(40, forward={1: 60}, elements={0: 4096, 1: 12288})
    return told("DD513", job.recording(sources={"/job/train.py": text}))


def test_blocks_of_neighbours_are_shown_beside_uneven_work_and_strided_shares_are_not() -> None:
    cut = "def scatter(batch, rank, n):\n    return batch[rank * n : (rank + 1) * n]\n"

    assert lines(uneven(cut)) == [28, 28, 2]
    assert lines(uneven(cut.replace("rank * n : (rank + 1) * n", "rank :: 2"))) == [28, 28]
    assert lines(uneven(cut + cut)) == [28, 28]  # which of the two, nobody knows


# -- an epoch that does not reach the data -----------------------------------------------------------------------------------


def repeated(loop: str, *, told_other: bool = False) -> Finding:
    """The loop over the batches is in line 31, the function with it begins in line 27."""
    text = (
        "\n" * 9
        + "def main(data, sampler):\n\n    loader = DataLoader(data, batch_sampler=sampler)\n"
        + "\n" * 14
        + loop
    )
    job = sampled_job(ranks=2, length=100).train(epoch=0).train(epoch=0)
    if told_other:
        job.train(epoch=1, loader=2, set_epoch_calls=1, epoch_told=1, set_epoch_site="train.py:30 train")
    return told("DD301", job.recording(sources={"/job/train.py": text}))


GUARDED = """def train(loader, epochs):
    for epoch in range(epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            step(batch)
"""


def test_a_set_epoch_that_reaches_nobody_comes_before_the_loop_with_its_condition() -> None:
    finding = repeated(GUARDED)

    assert lines(finding) == [29, 29, 30, 31, 12]
    assert finding.places[0].role == "tells the epoch only if `hasattr(loader.sampler, 'set_epoch')`"


def test_a_set_epoch_that_told_another_sampler_is_not_blamed() -> None:
    assert lines(repeated(GUARDED, told_other=True)) == [31, 31, 12]
    assert lines(repeated(GUARDED.replace("set_epoch(", "seed("))) == [31, 31, 12]


def test_samplers_for_the_ranks_of_a_task_are_left_alone_where_tasks_read_other_data() -> None:
    def told_of(digest: object) -> list[Finding]:
        job = sampled_job(ranks=3, length=96)
        orders = {0: share(96, 2, 0), 1: share(96, 2, 1), 2: list(range(96))}
        job.train(orders=orders, sampler_rank={0: 0, 1: 1, 2: 0}, num_replicas={0: 2, 1: 2, 2: 1}, digest=digest)
        return list(PLUGINS.checks["DD311"].look(job.recording()))

    first, other = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"
    assert not told_of({0: first, 1: first, 2: other})
    assert told_of(first)


STREAM = """def number():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class {name}(IterableDataset):
    def __init__(self, files):
        self.rank, self.world = number()
"""


def same_stream(text: dict[str, str]) -> Finding:
    stream = list(range(1000, 1020))
    flags = PassFlag.ITERABLE | PassFlag.HASHED
    job = sampled_job(ranks=2, length=-1).train(orders={0: stream, 1: stream}, sampler="", flags=flags)
    return told("DD306", job.recording(sources=text))


def test_the_line_that_takes_a_constant_for_the_rank_comes_before_the_loader() -> None:
    name = same_stream({}).evidence["dataset"]
    finding = same_stream({"/job/train.py": STREAM.format(name=name)})

    assert lines(finding)[:4] == [7, 7, 2, 12]
    assert lines(same_stream({"/job/train.py": STREAM.format(name="Other")})) == [12, 12, 31]


SEEDER = """def seeded(worker):
    random.seed(7 + worker)


def main(data):
    return DataLoader(data, num_workers=2, worker_init_fn=seeded)
"""


def test_the_line_that_makes_the_seeds_of_workers_comes_before_the_loader() -> None:
    job = sampled_job(ranks=2, length=100).train(workers=2).train(workers=2)
    for rank, log in enumerate(job.logs):
        for number in (1, 2):
            for worker in range(2):
                own = 100 * rank + 10 * number + worker + 1
                log.worker(number, worker, 4, torch=own, random=own + 5, numpy=worker + 1)
    finding = told("DD308", job.recording(sources={"/job/train.py": SEEDER}))

    assert lines(finding)[:2] == [2, 2]


@pytest.mark.parametrize(
    ("given", "before", "name"),
    [
        ("batches", "batches = BatchSampler(order, 4, True)", "order"),
        ("batches", "batches = BatchSampler(DistributedSampler(data), 4, True)", "batches.sampler"),
        ("BatchSampler(DistributedSampler(data), 4, True)", "", "loader.batch_sampler.sampler"),
        ("batches", "batches = make(data)", "batches"),
    ],
)
def test_what_torchs_batch_sampler_draws_from_is_told_the_epoch(given: str, before: str, name: str) -> None:
    text = (
        f"def main(data, order):\n    {before}\n    loader = DataLoader(data, batch_sampler={given})\n    run(loader)\n"
    )

    assert sampler_name({"/job/train.py": text}, SourceLine("/job/train.py", 3, "main")) == name


def test_the_sampler_of_torchs_batch_sampler_is_told_above_the_loop() -> None:
    loop = "def train(loader, epochs):\n    for epoch in range(epochs):\n\n\n        for batch in loader:\n            step()\n"

    def edits(batches: str) -> list[str]:
        made = f"def main(data, sampler):\n\n    loader = DataLoader(data, batch_sampler={batches})\n"
        job = sampled_job(ranks=2, length=100).train(epoch=0).train(epoch=0)
        text = "\n" * 9 + made + "\n" * 14 + loop
        found = told("DD301", job.recording(sources={"/job/train.py": text}))
        return [edit.text.strip() for one in found.prescriptions for edit in one.edits]

    assert edits("BatchSampler(sampler, 4, True)") == ["loader.batch_sampler.sampler.set_epoch(epoch)"]
    assert edits("sampler") == []


OWN = """
class Shares(Sampler):
    def __init__(self, length, rank, world_size):
        self.mine = range(rank, length, world_size)

    def __iter__(self):
        return iter(torch.randperm(len(self.mine)).tolist())
"""


def one_share(text: dict[str, str], length: int = 50) -> Finding:
    order = share(100, 2, 0)[:length]
    job = sampled_job(ranks=2, length=100).train(orders={0: order, 1: order}, sampler="Shares", flags=PassFlag(0))
    return told("DD304", job.recording(sources=text))


def own(rank: str, given: str) -> dict[str, str]:
    text = source(f"Shares(len(data), {given})", f"number = {rank}")["/job/train.py"]
    return {"/job/train.py": text.replace("sampler=sampler", "batch_sampler=sampler") + OWN}


@pytest.mark.parametrize("given", ["rank=number, world_size=2", "number, 2"])
def test_an_own_sampler_that_got_one_rank_everywhere_is_shown_where_it_got_it(given: str) -> None:
    finding = one_share(own("0", given))

    assert (
        finding.title
        == "ranks 0-1 draw the same samples in the same order: Shares deals them one share, by rank=number"
    )
    assert lines(finding) == [11, 11, 10, 12, 31]
    assert finding.prescriptions[0].change == "Shares(..., rank=dist.get_rank())"
    assert finding.prescriptions[0].effect == "each step averages the gradients of 2 times as many different samples"


def test_an_own_sampler_that_does_not_heed_its_rank_is_to_be_changed_itself() -> None:
    change = one_share(own("dist.get_rank()", "rank=number, world_size=2")).prescriptions[0].change

    assert change == "Shares: yield the share of its rank, order[rank :: dist.get_world_size()]"


def test_a_batch_sampler_that_takes_no_rank_gets_no_sampler_beside_it() -> None:
    text = own("0", "2")["/job/train.py"].replace("rank, world_size", "count")
    (prescription,) = one_share({"/job/train.py": text}).prescriptions

    assert (
        prescription.change == "Shares: let each rank draw its share, order[dist.get_rank() :: dist.get_world_size()]"
    )
    assert prescription.effect == ""  # half of the data was drawn, on each rank


def test_the_epoch_is_told_by_the_name_that_counts_it_where_batches_are_taken_one_by_one() -> None:
    text = (
        "\n" * 10
        + "def main(self, data):\n    self.loader = DataLoader(data, sampler=self.sampler)\n"
        + "\n" * 12
        + "def train(self):\n    try:\n        return next(self.batches)\n    except StopIteration:\n"
        + "        self.epoch += 1\n        self.batches = iter(self.loader)\n        return next(self.batches)\n"
    )
    job = sampled_job(ranks=2, length=100).train(epoch=0).train(epoch=0)
    finding = told("DD301", job.recording(sources={"/job/train.py": text}))

    assert finding.prescriptions[0].change == "self.sampler.set_epoch(self.epoch)  # before the loader is iterated anew"
