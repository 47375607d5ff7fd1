"""Where a program deals out a stream by rank, and what shuffles it before."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.stream_shares import (
    is_told_its_share,
    share_of_data,
    shared_by_workers,
    shares_without_rank,
    stream_share,
)
from distdoctor.recording.source_line import SourceLine

CLASS = """class Stream(IterableDataset):
    def __iter__(self):
        order = list(range(self.shards))
        random.Random(self.seed).shuffle(order)
        {share}
        yield from order
"""
MADE = SourceLine("/job/train.py", 12, "main")


@pytest.mark.parametrize(
    "share",
    [
        "order = order[dist.get_rank()::dist.get_world_size()]",
        "order = order[self.rank + worker * self.world_size :: self.world_size * workers]",
        "order = itertools.islice(order, rank, None, num_replicas)",
        "order = [one for one in order if one % world_size == rank]",
        "order = split_dataset_by_node(order, rank=rank, world_size=world)",
        "order = order.shard(num_shards=dist.get_world_size(), index=dist.get_rank())",
    ],
)
def test_shares_by_rank_are_recognised_in_the_class_of_the_data(share: str) -> None:
    found = stream_share({"/job/data.py": CLASS.format(share=share)}, "Stream", MADE)

    assert found is not None
    assert (found.shuffled.line, found.dealt.line, found.dealt.function) == (4, 5, "__iter__")


@pytest.mark.parametrize(
    ("shuffles", "by_rank"),
    [
        ("random.Random(self.seed)", False),
        ("random.Random(self.seed + 101 * self.rank)", True),
        ("np.random.default_rng((self.seed, dist.get_rank()))", True),
        ("self.rng", True),
        ("self.generator(self.rank)", True),
        ("self.generator(self.epoch)", False),
    ],
)
def test_a_shuffle_that_is_seeded_with_the_rank_is_known(shuffles: str, by_rank: bool) -> None:
    text = CLASS.format(share="order = order[self.rank :: self.world_size]").replace(
        "random.Random(self.seed)", shuffles
    )
    made = (
        "    def __init__(self, seed, rank):\n        self.rng = random.Random(seed + rank)\n\n"
        "    def generator(self, *salt):\n        return random.Random(hash_of(self.seed, *salt))\n"
    )
    text = text.replace("    def __iter__", f"{made}\n    def __iter__", 1)
    found = stream_share({"/job/data.py": text}, "Stream", MADE)

    assert found is not None
    assert found.by_rank is by_rank


def test_a_shuffle_of_something_else_by_rank_says_nothing_of_the_order() -> None:
    text = CLASS.replace("random.Random(self.seed).shuffle(order)", "random.Random(self.rank).shuffle(colours)")
    found = stream_share(
        {"/job/data.py": text.format(share="order = order[self.rank :: self.world_size]")}, "Stream", MADE
    )

    assert found is not None
    assert not found.by_rank


@pytest.mark.parametrize("share", ["order = order[info.id :: info.num_workers]", "order = order[rank * 8 :]", "pass"])
def test_shares_of_workers_and_parts_are_none(share: str) -> None:
    assert stream_share({"/job/data.py": CLASS.format(share=share)}, "Stream", MADE) is None


def test_a_share_that_is_dealt_where_the_loader_is_made_counts_and_one_elsewhere_does_not() -> None:
    text = "def {name}(rank, world_size):\n    data = Stream(split_by_node(files.shuffle(seed), rank, world_size))\n"
    found = stream_share({"/job/train.py": text.format(name="main")}, "Stream", MADE)

    assert found is not None
    assert (found.shuffled.line, found.dealt.line) == (2, 2)
    assert stream_share({"/job/train.py": text.format(name="evaluate")}, "Stream", MADE) is None


@pytest.mark.parametrize(("given", "counts"), [("rows", False), ("rows[rank::world_size]", True), ("own", True)])
def test_what_is_dealt_out_there_counts_only_where_the_loader_is_given_it(given: str, counts: bool) -> None:
    text = (
        "def main(rank, world_size):\n    own = rows[rank::world_size]\n    test = DataLoader(rows[rank::world_size])\n"
        f"    loader = DataLoader(Stream({given}))\n"
    )
    made = SourceLine("/job/train.py", 4, "main")
    assert (stream_share({"/job/train.py": text}, "Stream", made) is not None) is counts


TABLE = """def main():
    table = Table.load(){shard}
    data = Frames(table)
    return prepare(DataLoader(data))


class Frames(Dataset):
    def __init__(self, table):
        self.rows = table.rows{slice}

    def __len__(self):
        return len(self.rows)
"""


def test_the_share_of_which_data_are_made_is_found_on_the_way_to_them_and_in_their_class() -> None:
    def found(shard: str = "", slice_: str = "") -> int:
        return share_of_data({"/job/train.py": TABLE.format(shard=shard, slice=slice_)}, "Frames").line

    assert found(".shard(num_shards=world_size, index=rank)") == 2
    assert found(slice_="[rank::world_size]") == 9
    assert not found()


def test_numbers_that_callers_pass_under_other_names_are_followed_to_the_rank() -> None:
    rows = """class Rows(Dataset):
    def __init__(self, start, step):
        self.ids = list(range(start, 96, step))

    def __len__(self):
        return len(self.ids)


def open_split(worker=0, workers=1):
    return Rows(worker, workers)


def main(rank, world_size):
    data = open_split({given})
"""

    assert share_of_data({"/job/reader.py": rows.format(given="rank, world_size")}, "Rows").line == 3
    assert not share_of_data({"/job/reader.py": rows.format(given="info.id, info.num_workers")}, "Rows")


def test_the_number_of_the_rank_beside_whole_data_is_no_share() -> None:
    views = """class Views(Dataset):
    def __init__(self, rank, world_size):
        self.hot = range(rank, 96, world_size)
        self.rows = load(96)

    def __len__(self):
        return len(self.{measured})


data = Views(rank, world_size)
"""

    assert not share_of_data({"/job/views.py": views.format(measured="rows")}, "Views")
    assert share_of_data({"/job/views.py": views.format(measured="hot")}, "Views").line == 3


def test_data_of_a_class_that_is_not_the_users_are_judged_by_what_they_are_given() -> None:
    assert share_of_data({"/job/train.py": "data = TensorDataset(rows[rank::world_size])\n"}, "TensorDataset").line == 1
    assert not share_of_data(
        {"/job/train.py": "data = TensorDataset(rows)\nname = paths[rank::world_size]\n"}, "TensorDataset"
    )


@pytest.mark.parametrize(
    ("makes", "told"),
    [
        ("train = Rows(files)", False),
        ("train = Rows(files, rank=0, world=1)", True),
        ("train = Rows(files, 0, 1)", True),
        ("train = Rows(files, rank=None)", False),
        ("train, held = Rows(files), Rows(others, rank=0, world=1)", False),
    ],
)
def test_data_that_are_told_a_share_do_not_take_that_of_the_process(makes: str, told: bool) -> None:
    text = f"class Rows:\n    def __init__(self, files, rank=None, world=None):\n        pass\n\n\n{makes}\n"
    assert is_told_its_share({"train.py": text}, "Rows") is told


@pytest.mark.parametrize(
    ("taken", "told"),
    [
        ("range(0, len(self.rows), nranks)", True),
        ("self.rows[::world_size]", True),
        ("islice(self.rows, 0, None, dist.get_world_size())", True),
        ("range(rank, len(self.rows), nranks)", False),
        ("self.rows[self.first :: world_size]", False),
        ("self.rows[::2]", False),
    ],
)
def test_a_share_that_begins_at_the_front_on_every_rank_is_known(taken: str, told: bool) -> None:
    made = "class Rows:\n    def __init__(self, rank):\n        self.first = rank\n\n"
    text = f"{made}    def share(self):\n        return {taken}\n"

    assert [line.line for line, _ in shares_without_rank({"/job/data.py": text})] == [6] * told


@pytest.mark.parametrize(
    ("taken", "told"),
    [
        ("self.shards[info.id :: info.num_workers]", True),
        ("itertools.islice(self.shards, first, None, info.num_workers)", True),
        ("self.shards[rank * info.num_workers + info.id :: world_size * info.num_workers]", False),
        ("self.shards[reader :: dist.get_world_size() * info.num_workers]", False),
        ("self.shards[:: 2]", False),
    ],
)
def test_a_stream_that_is_dealt_out_to_workers_alone_is_known(taken: str, told: bool) -> None:
    text = (
        "class Stream(IterableDataset):\n    def __iter__(self):\n        info = get_worker_info()\n"
        f"        first, reader = info.id, dist.get_rank()\n        yield from {taken}\n"
    )

    assert [line.line for line, _ in shared_by_workers({"/job/data.py": text}, "Stream")] == [5] * told
    assert shared_by_workers({"/job/data.py": text}, "Other") == []


def test_a_share_is_known_though_the_data_are_made_in_several_places() -> None:
    text = (
        "class Stream(IterableDataset):\n    def __init__(self, folder, mine, of):\n        self.mine, self.of = mine, of\n\n"
        "    def __iter__(self):\n        yield from self.files[self.mine :: self.of]\n\n\n"
        "train = Stream(folder, rank, world_size)\nheld_out = Stream(other, 0, 1)\n"
    )

    found = stream_share({"/job/data.py": text}, "Stream", MADE)

    assert found is not None
    assert found.dealt.line == 6
