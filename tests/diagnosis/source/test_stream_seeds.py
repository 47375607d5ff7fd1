"""The number that a worker of one rank shares with a worker of another."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.stream_seeds import summed_numbers, worker_seed

CLASS = """class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        worker = info.id
        reader = {number}
        yield from range(reader, self.shards, self.world * info.num_workers)
"""


@pytest.mark.parametrize("number", ["self.rank + worker", "worker + self.rank", "dist_rank + info.id"])
def test_a_sum_of_rank_and_worker_is_found(number: str) -> None:
    ((line, text),) = summed_numbers({"/job/data.py": CLASS.format(number=number)}, "Stream")

    assert (line.line, line.function, text) == (5, "__iter__", number)


@pytest.mark.parametrize(
    "number", ["self.rank * info.num_workers + worker", "self.rank + self.world * worker", "worker + 1"]
)
def test_a_number_of_its_own_for_every_reader_is_none(number: str) -> None:
    assert summed_numbers({"/job/data.py": CLASS.format(number=number)}, "Stream") == []


WORKERS = """def seeded(worker_id):
    base = 2024
    get_worker_info().dataset.rng.seed(base + worker_id)


def main():
    random.seed(0)
    return DataLoader(Crops(), num_workers=2{given})
"""


def seeds(source: str, *, own: bool = True) -> list[tuple[int, str]]:
    return [(line.line, text) for line, text in worker_seed({"/job/train.py": source}, "Crops", own=own)]


def test_the_line_that_seeds_in_a_worker_init_fn_is_found() -> None:
    assert seeds(WORKERS.format(given=", worker_init_fn=seeded")) == [(3, "base + worker_id")]
    assert seeds(WORKERS.format(given=", worker_init_fn=partial(seeded)")) == [(3, "base + worker_id")]
    assert seeds(WORKERS.format(given="")) == []


SEEDER = """class Seeder:
    def __init__(self, seed):
        self.seed = seed

    def __call__(self, worker_id):
        s = self.seed + worker_id
        np.random.seed(s)
        random.seed(s)


class Crops(Dataset):
    def __init__(self, seed):
        rng = np.random.default_rng(seed)


def main(seed):
    return DataLoader(Crops(seed), num_workers=2{given})
"""


def test_one_seed_for_two_generators_is_found_in_the_object_that_each_worker_calls() -> None:
    found = seeds(SEEDER.format(given=", worker_init_fn=Seeder(seed)"), own=False)

    assert found == [(6, "self.seed + worker_id"), (7, "np.random.seed(s)"), (8, "random.seed(s)")]


def test_a_generator_of_the_dataset_is_no_seed_of_the_workers_generators() -> None:
    assert seeds(SEEDER.format(given=""), own=False) == []
    assert seeds(SEEDER.format(given="")) == [(13, "np.random.default_rng(seed)")]
