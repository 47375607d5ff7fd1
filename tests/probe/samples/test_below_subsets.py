"""What Subsets stand for: the samples of the data sets below them, also where several are put together."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from distdoctor.probe.samples.below_subsets import below_subsets
from distdoctor.recording.trace.layout import PassFlag


def rows(count: int, first: int) -> TensorDataset:
    return TensorDataset(torch.arange(first, first + count))


def test_an_index_leads_to_the_same_sample_below() -> None:
    one, other = rows(10, 0), rows(6, 100)
    nested: Any = Subset(Subset(one, [9, 7, 5, 3]), [2, 0])
    dataset: Any = Subset(ConcatDataset([nested, other, Subset(other, range(3, 6))]), [7, 0, 1, 3, 10])
    below, way, flag = below_subsets(dataset)

    def there(index: int) -> int:
        for step in way:
            index = step(index)
        return index

    assert flag is PassFlag.TRANSLATED
    assert len(below) == 22
    assert [below[there(number)] for number in range(5)] == [dataset[number] for number in range(5)]


def test_whole_data_sets_put_together_are_what_they_are() -> None:
    dataset: Any = ConcatDataset([rows(2, 0), rows(3, 5)])
    assert below_subsets(dataset) == (dataset, [], PassFlag(0))


class Endless(Dataset[int]):
    """Has no length."""

    def __getitem__(self, index: int) -> int:
        return index


def test_parts_of_what_has_no_length_are_not_looked_through() -> None:
    dataset: Any = ConcatDataset([Subset(Endless(), [4, 5]), Subset(Endless(), [7])])
    assert below_subsets(dataset) == (dataset, [], PassFlag.UNTRANSLATED)
