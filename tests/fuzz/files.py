"""Host bundles, documents of hang-dump and checkpoints, damaged by what they are made of: packed values, opcodes of pickles,
headers and entries of archives."""

from __future__ import annotations

import base64
import io
import json
import lzma
import random
import struct
import tarfile
import tempfile
import zipfile
import zlib
from functools import cache
from pathlib import Path

import msgspec
from texts import PICKLE, put_in

from distdoctor.recording.bundle import IN_JSON, MAGIC, READABLE, pack
from distdoctor.recording.trace.run_folder import read_run

GOLDEN = Path(__file__).parent.parent / "recording/golden"


def _opened(data: bytes) -> tuple[int, bytes]:
    """(version, content) of a bundle."""
    version, packed = data[len(MAGIC)], data[len(MAGIC) + 1 :]
    return version, zlib.decompress(packed) if version == 3 else lzma.decompress(packed)


def _closed(version: int, content: bytes) -> bytes:
    packed = zlib.compress(content, 1) if version == 3 else lzma.compress(content, preset=0)
    return MAGIC + bytes([version]) + packed


@cache
def _bundles() -> tuple[tuple[int, bytes], ...]:
    """(version, content) of the golden recordings' bundles, and of one that each version has written."""
    found = [_opened(path.read_bytes()) for path in sorted(GOLDEN.glob("bundles/*.ddb"))]
    for archive in sorted(GOLDEN.glob("*/*.tar.xz")):
        with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
            [run] = {trace.parent for trace in Path(folder).rglob("*.trace")}
            found.append(_opened(pack(read_run(run))))
    assert {version for version, _ in found} == set(READABLE)
    return tuple(found)


@cache
def _checkpoints() -> dict[str, dict[str, bytes]]:
    """kind -> file -> content: what torch.save, torch.distributed.checkpoint and safetensors write of a small training."""
    import torch
    import torch.distributed.checkpoint as dcp

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "parameter": model.bias, "optimizer": optimizer.state_dict(), "epoch": 3}
    saved = io.BytesIO()
    torch.save(state, saved)
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"model": model.state_dict()}, checkpoint_id=folder, no_dist=True)
        distributed = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    about = {"weight": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}, "__metadata__": {"format": "pt"}}
    header = json.dumps(about).encode()
    tensors = struct.pack("<Q", len(header)) + header + bytes(24)
    return {"saved": {"last.pt": saved.getvalue()}, "dcp": distributed, "tensors": {"model.safetensors": tensors}}


def _bytes_changed(chance: random.Random, data: bytes) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 5))):
        data = chance.choice(PICKLE)(chance, data)
    return data


def bundle(chance: random.Random, folder: Path) -> tuple[Path, list[str]]:
    """A host bundle, half of them inside a document of hang-dump."""
    version, raw = chance.choice(_bundles())
    how = chance.choice(("values", "values", "packed bytes", "file"))
    if how == "values":
        content = msgspec.msgpack.decode(raw)
        for _ in range(chance.choice((1, 1, 2, 4))):
            put_in(chance, content)
        raw = msgspec.msgpack.encode(_without_lone_surrogates(content))
    elif how == "packed bytes":
        raw = _bytes_changed(chance, raw)
    data = _closed(version, raw)
    if how == "file":
        data = _bytes_changed(chance, data)
    if chance.random() < 0.5:
        (folder / "host.bundle").write_bytes(data)
        return folder / "host.bundle", [f"version {version}", how]
    document = {IN_JSON: base64.b64encode(data).decode(), "other_jobs": []}
    (folder / "hang.json").write_text(json.dumps(document))
    return folder / "hang.json", [f"version {version}", how, "in a document"]


def _without_lone_surrogates(content: object) -> object:
    """msgpack has neither them nor numbers beyond 64 bits."""
    if isinstance(content, dict):
        return {key: _without_lone_surrogates(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_without_lone_surrogates(value) for value in content]
    if isinstance(content, str):
        return content.encode("utf-8", "replace").decode()
    return (1 << 64) - 1 if isinstance(content, int) and content >= 1 << 64 else content


def checkpoint(chance: random.Random, folder: Path) -> tuple[Path, list[str]]:
    """A checkpoint with one file spoiled: its bytes, the pickle in its archive, or what the archive lists."""
    kind = chance.choice(("saved", "saved", "dcp", "tensors"))
    files = dict(_checkpoints()[kind])
    name = chance.choice(list(files))
    how = chance.choice(("inside", "inside", "file", "gone"))
    if how == "file" or (how == "inside" and name != "last.pt" and kind != "tensors"):
        files[name] = _bytes_changed(chance, files[name])
    elif how == "inside" and kind == "tensors":
        (length,) = struct.unpack("<Q", files[name][:8])
        header = json.loads(files[name][8 : 8 + length])
        put_in(chance, header)
        text = json.dumps(header).encode()
        files[name] = struct.pack("<Q", chance.choice((len(text), len(text), 0, 1 << 62))) + text + bytes(24)
    elif how == "inside":
        files[name] = _archive_changed(chance, files[name])
    elif len(files) > 1:
        del files[name]
    for one, data in files.items():
        (folder / one).write_bytes(data)
    return (folder if kind == "dcp" else folder / next(iter(files))), [kind, how]


def _archive_changed(chance: random.Random, data: bytes) -> bytes:
    """The archive with its pickle damaged, or with an entry left out or packed."""
    left_out = chance.random() < 0.2
    again = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(again, "w") as other:
        entries = archive.infolist()
        skipped = chance.choice(entries) if left_out else None
        for one in entries:
            content = archive.read(one)
            if one.filename.endswith("data.pkl") and not left_out:
                content = _bytes_changed(chance, content)
            if one is not skipped:
                packed = zipfile.ZIP_DEFLATED if chance.random() < 0.05 else zipfile.ZIP_STORED
                other.writestr(one.filename, content, packed)
    return again.getvalue()


FILES = {"bundle": bundle, "checkpoint": checkpoint}
