"""What lies in a checkpoint is read without running anything of it; what is torn or missing is said."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.checkpoint.contents import is_checkpoint, read_contents
from distdoctor.recording.checkpoint.inert_pickle import read_inert


def trained(path: Path) -> Path:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.save({"model": state, "parameter": model.bias, "optimizer": optimizer.state_dict(), "epoch": 3}, path)
    return path


def test_a_file_of_torch_save_shows_names_shapes_counters_and_the_wrapper(tmp_path: Path) -> None:
    path = trained(tmp_path / "last.pt")

    contents = read_contents(path)

    shapes = {one.name: (one.shape, one.dtype, one.device) for one in contents.tensors}
    assert shapes["model.module.weight"] == ((2, 3), "float32", "cpu")
    assert shapes["parameter"] == ((2,), "float32", "cpu")
    assert shapes["optimizer.state.0.exp_avg"] == ((2, 3), "float32", "cpu")
    assert contents.counters == {"epoch": 3}
    assert (contents.wrapped, contents.missing) == ({"module.": 2}, ())


def test_a_torn_file_is_told_as_torn(tmp_path: Path) -> None:
    path = trained(tmp_path / "last.pt")
    path.write_bytes(path.read_bytes()[:-200])

    assert is_checkpoint(path)
    with pytest.raises(UnreadableRecording, match="is torn"):
        read_contents(path)


@pytest.mark.parametrize(("mark", "at", "value"), [(b"PK\x01\x02", 6, b"\x7d"), (b"PK\x06\x07", 16, b"\x02")])
def test_an_archive_of_a_later_version_or_of_several_disks_is_refused(
    mark: bytes, at: int, value: bytes, tmp_path: Path
) -> None:
    path = trained(tmp_path / "last.pt")
    data = bytearray(path.read_bytes())
    place = data.rindex(mark) + at
    data[place : place + 1] = value
    path.write_bytes(data)

    assert is_checkpoint(path)
    with pytest.raises(UnreadableRecording):
        read_contents(path)


def test_a_storage_that_is_not_there_is_missing(tmp_path: Path) -> None:
    path, other = trained(tmp_path / "last.pt"), tmp_path / "less.pt"
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(other, "w") as less:
        for one in whole.infolist():
            if not one.filename.endswith("data/0"):
                less.writestr(one, whole.read(one))

    assert read_contents(other).missing == ("last/data/0",)


class Harmful:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def test_nothing_of_a_checkpoint_is_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "evil.pt", tmp_path / "mark"
    torch.save({"model": Harmful(str(mark))}, path)

    contents = read_contents(path)

    assert contents.others == ("model",)
    assert not mark.exists()


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x02", b"\x80\x02Nr\xff\xff\xff\x7f.", b"\x80\x02(c", pickle.dumps([1])[:-3]]
)
def test_a_torn_or_crafted_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="its pickle is torn or crafted"):
        read_inert(data)


def test_of_safetensors_the_header_is_read_and_what_is_cut_off_is_missing(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(4, 2, dtype=torch.bfloat16)}, path)

    (tensor,) = read_contents(path).tensors
    assert (tensor.name, tensor.shape, tensor.dtype, tensor.nbytes) == ("weight", (4, 2), "bfloat16", 16)
    path.write_bytes(path.read_bytes()[:-6])
    assert read_contents(path).missing == ("the last 6 bytes of model.safetensors",)


@pytest.mark.parametrize(
    "about",
    [
        True, [], "F32", None, {}, {"dtype": "F32", "shape": [2], "data_offsets": []},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, [8]]}, {"dtype": "F32", "shape": [10**30] * 9, "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}, {"dtype": "F32", "shape": [1] * 1000, "data_offsets": [0, 8]},
    ],
)  # fmt: skip
def test_a_header_that_describes_no_tensor_is_refused_in_one_sentence(about: object, tmp_path: Path) -> None:
    header = json.dumps({"weight": about}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))

    with pytest.raises(UnreadableRecording, match="is no checkpoint that can be read"):
        read_contents(path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": 3}', '{"weight_map": []}'])
def test_an_index_that_maps_nothing_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "model.safetensors.index.json").write_text(text)

    with pytest.raises(UnreadableRecording, match="maps no tensor to a file"):
        read_contents(tmp_path)


def test_of_a_distributed_checkpoint_shards_that_are_not_there_are_missing(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    folder = tmp_path / "dcp"
    dcp.save({"model": {"weight": torch.ones(4, 2)}, "step": 7}, checkpoint_id=folder, no_dist=True)

    contents = read_contents(folder)
    assert [(one.name, one.shape, one.dtype) for one in contents.tensors] == [("model.weight", (4, 2), "float32")]
    assert (contents.others, contents.missing) == (("step",), ())
    for shard in folder.glob("*.distcp"):
        shard.unlink()
    assert read_contents(folder).missing == ("__0_0.distcp",)
