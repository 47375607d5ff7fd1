"""What the description of a data set tells: the same values in another order, and what lies in Python objects."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from distdoctor.diagnosis.data.samples import DataSet
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import NOTE, Finding
from distdoctor.plugins import load
from distdoctor.probe.samples.dataset_content import content_of
from distdoctor.testing.samples import sampled_job


class Listed(Dataset[Any]):
    def __init__(self, rows: Any) -> None:
        self.rows, self.kind = rows, "train"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def described(rows: Any) -> DataSet:
    content = content_of(Listed(rows))
    return DataSet.parse(f"{content.text}\0\0{content.bag}\0{content.objects}")


@pytest.mark.parametrize(
    "row",
    [
        str,
        lambda number: (f"{number}.png", number % 10),
        int,
        lambda number: {"id": number, "text": [number, "a"], "score": 0.5},
        lambda number: [number, None],
        lambda number: SimpleNamespace(name=str(number)),
    ],
    ids=["names", "pairs", "numbers", "dicts", "lists", "objects"],
)
def test_the_same_values_in_another_order_are_known(row: Any) -> None:
    rows = [row(number) for number in range(500)]
    shuffled = random.Random(1).sample(rows, 500)

    assert described(rows).reordered(described(shuffled))
    assert not described(rows).reordered(described(rows))
    assert not described(rows).reordered(described([*shuffled[1:], row(501)]))


@pytest.mark.parametrize("rows", [torch.randn(300, 2), numpy.arange(300), TensorDataset(torch.randn(300, 2))])
def test_the_same_rows_of_a_tensor_in_another_order_are_known(rows: Any) -> None:
    if isinstance(rows, TensorDataset):
        shuffled: Any = TensorDataset(rows.tensors[0].flip(0))
        other: Any = TensorDataset(rows.tensors[0] + 1)
    else:
        shuffled, other = rows[torch.randperm(300)], rows + 1

    assert described(rows).reordered(described(shuffled))
    assert not described(rows).reordered(described(rows))
    assert not described(rows).reordered(described(other))


@pytest.mark.parametrize(
    "rows",
    [
        list(range(50_000)),
        [object()] * 9,
        [{"image": torch.ones(2)}] * 9,
        [["a" * 10_000]] * 9_000,
        torch.zeros(20_000),
    ],
    ids=["long", "objects", "tensors", "large", "a long tensor"],
)
def test_of_long_lists_and_other_things_only_the_order_counts(rows: Any) -> None:
    assert described(rows).bag == ""


def test_python_objects_are_weighed_with_what_lies_in_them() -> None:
    rows = [(str(number) * 8, float(number)) for number in range(20_000)]
    pair = rows[-1].__sizeof__() + rows[-1][0].__sizeof__() + rows[-1][1].__sizeof__()

    found = described(rows)

    assert found.objects.endswith(" rows")
    assert 0.8 < found.object_bytes / (20_000 * pair) < 1.2
    assert described(rows[:5_000]).objects == described(torch.zeros(20_000)).objects == ""


def copied(**about: Any) -> tuple[Finding, ...]:
    checks = [check for check in load().checks.values() if check.code == "DD413"]
    return examine(sampled_job(2).train(**about).recording(), checks).findings


def test_objects_that_many_workers_copy_are_a_note() -> None:
    (finding,) = copied(workers=4, objects=f"{50 << 20} rows")

    assert (finding.severity, finding.ranks, finding.evidence["workers"]) == (NOTE, (0, 1), 8)
    assert finding.title.startswith("Digits.rows holds 50 MiB of Python objects, which 8 workers copy")
    assert copied(workers=0, objects=f"{50 << 20} rows") == copied(workers=1, objects=f"{1 << 20} rows") == ()
