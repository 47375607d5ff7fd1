"""The reference data are what they say they are, and nothing is downloaded."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

from distdoctor.errors import WrongUse
from distdoctor.workloads import factory
from distdoctor.workloads.data import digits, text, torchvision_data
from distdoctor.workloads.shapes import Shapes


def test_the_digits_are_all_there_and_no_test_image_is_trained_with() -> None:
    train, test = digits.make()
    assert (len(train), len(test)) == (1438, 359)
    # Counts per digit from the data set's own description (178, 182, 177, 183, 181, 182, 181, 179, 174, 180).
    counts = torch.bincount(torch.tensor(train.labels + test.labels)).tolist()
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    pixels = torch.cat([train.images, test.images])
    assert pixels.mean().abs() < 0.01
    assert (pixels.std() - 1).abs() < 0.01
    as_rows = {tuple(image.flatten().tolist()) for image in train.images}
    assert not any(tuple(image.flatten().tolist()) in as_rows for image in test.images)


def test_the_digits_say_where_they_come_from() -> None:
    words = (digits.FILE.parent / "LICENSE").read_text()
    assert "https://doi.org/10.24432/C50P49" in words
    assert "CC BY 4.0" in words


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_ranks_together_read_what_single_reads(ranks: int) -> None:
    """Step by step and in every epoch, with the stock sampler; the reason that loss curves can be compared."""
    data, batch = range(1438), 24

    def steps(data_rank: int, data_ranks: int, epoch: int) -> list[list[int]]:
        sampler: DistributedSampler[int] = DistributedSampler(
            data, data_ranks, data_rank, shuffle=True, seed=5, drop_last=True
        )
        sampler.set_epoch(epoch)
        own, size = list(sampler), batch // data_ranks
        return [own[start : start + size] for start in range(0, len(own) - size + 1, size)]

    for epoch in (0, 1):
        whole = steps(0, 1, epoch)
        shares = [steps(rank, ranks, epoch) for rank in range(ranks)]
        assert {len(share) for share in shares} == {len(whole)} == {1438 // batch}
        for number, step in enumerate(whole):
            assert sorted(step) == sorted(index for share in shares for index in share[number])


def test_a_text_is_cut_into_lines_with_the_next_byte_as_target(tmp_path: Path) -> None:
    written = bytes(range(256)) * 8
    (tmp_path / "file").write_bytes(written)
    train, test = text.make(str(tmp_path / "file"))
    inputs, targets = train[1]
    assert bytes(inputs.tolist()) == written[64:128]
    assert bytes(targets.tolist()) == written[65:129]
    assert Shapes.of(train) == Shapes((64,), 256)
    assert len(train) + len(test) == (len(written) - 1) // 64


def test_the_usual_text_is_there_on_every_python() -> None:
    train, test = text.make()
    assert len(train) + len(test) == 64 * 1024 // 64 - 1


@pytest.mark.parametrize(("size", "message"), [(None, "cannot read"), (100, "too few")])
def test_a_text_that_is_missing_or_too_short_is_refused(tmp_path: Path, size: int | None, message: str) -> None:
    if size is not None:
        (tmp_path / "file").write_bytes(b"x" * size)
    with pytest.raises(WrongUse, match=message):
        text.make(str(tmp_path / "file"))


def test_mnist_is_read_from_disk(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, number in (("train", 6), ("t10k", 3)):
        images = struct.pack(">IIII", 0x803, number, 28, 28) + bytes(number * 28 * 28)
        labels = struct.pack(">II", 0x801, number) + bytes(range(number))
        # torchvision looks for the unpacked files, and knows the packed ones only as downloads.
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)
        (raw / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    train, test = torchvision_data.mnist(str(tmp_path))
    assert (len(train), len(test)) == (6, 3)
    assert Shapes.of(train) == Shapes((1, 28, 28), 10)


@pytest.mark.parametrize("make", [torchvision_data.mnist, torchvision_data.cifar10])
def test_a_missing_data_set_is_not_downloaded(make: object, tmp_path: Path) -> None:
    with pytest.raises(WrongUse) as caught:
        make(str(tmp_path))  # type: ignore[operator]
    assert "distdoctor does not download" in caught.value.way_out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("split", [True, False])
def test_a_folder_of_images_with_and_without_a_split(tmp_path: Path, split: bool) -> None:
    for part in ("train", "val") if split else (".",):
        for label in ("cat", "dog"):
            (tmp_path / part / label).mkdir(parents=True)
            for number in range(5):
                Image.new("RGB", (40, 30), (number, 0, 0)).save(tmp_path / part / label / f"{number}.png")
    train, test = torchvision_data.imagefolder(str(tmp_path))
    assert Shapes.of(train) == Shapes((3, 224, 224), 2)
    assert (len(train), len(test)) == ((10, 10) if split else (8, 2))


def test_fake_images_differ_between_training_and_test() -> None:
    train, test = torchvision_data.fake()
    assert Shapes.of(train) == Shapes((3, 32, 32), 10)
    assert not torch.equal(train[0][0], test[0][0])


def test_the_users_own_tensors_say_how_many_classes_they_have() -> None:
    assert Shapes.of(TensorDataset(torch.zeros(4, 3), torch.tensor([0, 1, 6, 2]))) == Shapes((3,), 7)


def test_a_data_set_that_does_not_say_how_many_classes_it_has_is_refused() -> None:
    with pytest.raises(WrongUse, match="list does not say how many classes"):
        Shapes.of([(torch.zeros(3), 0)])


def own_data() -> tuple[TensorDataset, TensorDataset]:
    both = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    return both, both


def no_data() -> int:
    return 5


def test_the_users_own_factories_are_called() -> None:
    train, _ = factory.make_data(f"{__name__}:own_data", None)
    assert len(train) == 4
    with pytest.raises(WrongUse, match="no_data returned int"):
        factory.make_data(f"{__name__}:no_data", None)
    with pytest.raises(WrongUse, match="there is no module nowhere"):
        factory.make_data("nowhere.at.all:make", None)
    with pytest.raises(WrongUse, match=f"{__name__} has no nothing"):
        factory.make_model(f"{__name__}:nothing", Shapes((3,), 2))
