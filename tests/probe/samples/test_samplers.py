"""What iterable data say about their own shuffling: Hugging Face's, in the shapes that their versions have had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from distdoctor.probe.samples.samplers import facts_of_stream
from distdoctor.recording.trace.layout import PassFlag


class ArrowExamplesIterable:
    pass


class MappedExamplesIterable:
    def __init__(self, ex_iterable: Any) -> None:
        self.ex_iterable = ex_iterable


class BufferShuffledExamplesIterable(MappedExamplesIterable):
    pass


class Stream(IterableDataset[int]):
    """Attributes as `datasets.IterableDataset` has them."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("nothing in it is called")

    def set_epoch(self, epoch: int) -> None:
        raise AssertionError("nothing in it is called")


def shuffles(dataset: Any) -> bool | None:
    flags = facts_of_stream(dataset, None).flags
    assert flags & PassFlag.TELLABLE
    return bool(flags & PassFlag.SHUFFLE) if flags & PassFlag.SHUFFLE_KNOWN else None


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Stream(_shuffling=object(), _ex_iterable=ArrowExamplesIterable()), True),  # datasets 2 to 4
        (Stream(_shuffling=None, _ex_iterable=ArrowExamplesIterable()), False),
        (
            Stream(_ex_iterable=MappedExamplesIterable(BufferShuffledExamplesIterable(ArrowExamplesIterable()))),
            True,
        ),  # 5
        (Stream(_ex_iterable=MappedExamplesIterable(ArrowExamplesIterable())), False),
        (Stream(), None),
    ],
)
def test_how_hugging_faces_streams_shuffle_is_read_off_their_attributes(dataset: Any, expected: bool | None) -> None:
    assert shuffles(dataset) == expected


@pytest.mark.parametrize("shuffled", [True, False])
def test_the_installed_datasets_say_it_so(shuffled: bool) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"number": list(range(64))}).to_iterable_dataset(num_shards=4)
    data = data.shuffle(seed=1).map(lambda row: row) if shuffled else data.map(lambda row: row)

    assert shuffles(data.with_format("torch")) == shuffled
