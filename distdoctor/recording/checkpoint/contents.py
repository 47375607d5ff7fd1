"""The contents of a checkpoint: torch.save's file, a safetensors file or folder, a folder of torch's distributed checkpoint."""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.checkpoint.inert_pickle import LARGEST, Inert, key_text, read_inert
from distdoctor.recording.files import head_of, opened, read_bytes
from distdoctor.recording.foreign_values import parse_json

WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")
COUNTERS = ("epoch", "step", "global_step", "iteration", "iter", "last_epoch", "epochs", "steps")
MOST_ENTRIES = 200_000
LONGEST_NAME = 500
MOST_DIMENSIONS = 64  # of torch
MOST_AROUND = 8  # calls around that of a tensor; a Parameter is one. One that holds itself would have no end
_ZIP = b"PK\x03\x04"
_BYTES = {"float64": 8, "double": 8, "int64": 8, "long": 8, "float32": 4, "float": 4, "int32": 4, "int": 4, "float16": 2,
          "half": 2, "bfloat16": 2, "int16": 2, "short": 2}  # fmt: skip
_LEGACY = {"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
           "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """One tensor: its name (`model.body.weight`), and what it is."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str = ""  # from which it was saved

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _BYTES.get(self.dtype, 1)


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds. `missing`: files or parts that it names and that are not there. `counters`: epochs and steps."""

    path: str
    kind: str  # `torch.save`, `safetensors`, `torch.distributed.checkpoint`
    tensors: tuple[StoredTensor, ...]
    counters: Mapping[str, int | float] = field(default_factory=dict)
    others: tuple[str, ...] = ()  # names of what is no tensor
    files: int = 1
    missing: tuple[str, ...] = ()

    @property
    def wrapped(self) -> dict[str, int]:
        """Wrappers' prefixes, and how many names carry each."""
        counts = {one: sum(_carries(tensor.name, one) for tensor in self.tensors) for one in WRAPPERS}
        return {one: count for one, count in counts.items() if count}


def _carries(name: str, prefix: str) -> bool:
    return name.startswith(prefix) or f".{prefix}" in name


def is_checkpoint(path: Path) -> bool:
    """Whether a checkpoint lies there, by its first bytes; of a folder, by what is in it."""
    if isdir(path):
        return isfile(path / ".metadata") or any(path.glob("*.safetensors"))
    head = head_of(path, 9)
    if head[:4] == _ZIP:
        return _is_saved(path)
    return (isfile(path) and path.suffix == ".safetensors") or (head[8:9] == b"{" and head[5:8] == b"\0\0\0")


def _is_saved(path: Path) -> bool:
    """Whether an archive is one of torch.save, also a torn one: other archives have their list of entries, without a pickle."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("data.pkl") for name in archive.namelist())
    except OSError:
        return False
    except (ValueError, RuntimeError, zipfile.BadZipFile):
        return True


def read_contents(path: Path) -> Contents:
    """What a checkpoint holds. UnreadableRecording: it is torn, or none that torch or safetensors writes."""
    try:
        if path.is_dir():
            return _distributed(path) if (path / ".metadata").is_file() else _safetensors_folder(path)
        with opened(path) as file:
            head = file.read(4)
        return _saved(path) if head == _ZIP else _safetensors(path)
    except (zipfile.BadZipFile, EOFError):
        size = path.stat().st_size
        raise UnreadableRecording(
            f"{path} is torn: it begins as torch.save writes and has no end ({size:,} bytes)",
            way_out="The save was cut off (DD707); go back to the checkpoint before it.",
        ) from None
    except (
        ValueError,
        OSError,
        KeyError,
        struct.error,
        RuntimeError,
    ) as trouble:  # of zipfile: encrypted, a later version
        raise UnreadableRecording(
            f"{path} is no checkpoint that can be read: {trouble}",
            way_out="Point at a file of torch.save or safetensors, or a folder of torch.distributed.checkpoint.",
        ) from None


# -- torch.save --------------------------------------------------------------------------------------------------------------


def _saved(path: Path) -> Contents:
    with zipfile.ZipFile(path) as archive:
        sizes = {one.filename: one for one in archive.infolist()}
        name = next((one for one in sizes if one.endswith("/data.pkl") or one == "data.pkl"), None)
        if name is None:
            raise ValueError("it is a zip file without data.pkl")
        if sizes[name].file_size > LARGEST or sizes[name].compress_type != zipfile.ZIP_STORED:
            raise ValueError("its data.pkl is packed or too large")
        found = read_inert(archive.read(name))
    tensors: list[StoredTensor] = []
    counters: dict[str, int | float] = {}
    others: list[str] = []
    missing: dict[str, None] = {}
    folder = name[: -len("data.pkl")]
    for where, value in _walk(found):
        if isinstance(value, Inert) and "_rebuild_" in value.name:
            tensor, key = _tensor(where, value)
            tensors.append(tensor)
            if key and f"{folder}data/{key}" not in sizes:
                missing[f"{folder}data/{key}"] = None
        else:
            _sort(where, value, counters, others)
    return Contents(str(path), "torch.save", tuple(tensors), counters, tuple(others), 1, tuple(missing))


def _walk(found: Any) -> Iterator[tuple[str, Any]]:
    """Leaves with their names, in order; dictionaries and lists are gone through, at most `MOST_ENTRIES` of all.

    A few bytes of a pickle refer to what stands there already, so each part is taken out only when its turn comes.
    """
    holds_more: dict[int, bool] = {}  # lists by their id: each is looked through once
    stack = [iter([("", found)])]
    left = MOST_ENTRIES
    while stack and left:
        if (entry := next(stack[-1], None)) is None:
            stack.pop()
            continue
        left -= 1
        where, one = entry
        if isinstance(one, list | tuple) and id(one) not in holds_more:
            holds_more[id(one)] = any(isinstance(value, dict | Inert) for value in one)
        if isinstance(one, dict):
            stack.append(_named(where, one.items()))
        elif holds_more.get(id(one)):
            stack.append(_named(where, enumerate(one)))
        elif isinstance(one, Inert) and one.state and "_rebuild_" not in one.name:
            stack.append(iter([(where, one.state)]))
        else:
            yield where, one


def _named(where: str, parts: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    for key, value in parts:
        name = key_text(key)[:LONGEST_NAME]
        yield f"{where}.{name}"[:LONGEST_NAME] if where else name, value


def _tensor(where: str, value: Inert) -> tuple[StoredTensor, str]:
    args = value.args
    for _ in range(MOST_AROUND):
        if args and isinstance(args[0], Inert) and "_rebuild_" in args[0].name:
            args = args[0].args
    storage = args[0] if args and isinstance(args[0], Inert) else Inert("")
    about = storage.args if len(storage.args) >= 4 else ("", Inert(""), "", "")
    kind = about[1].name.rpartition(".")[2] if isinstance(about[1], Inert) else ""
    dtype = _LEGACY.get(kind.removesuffix("Storage"), kind)
    shape = args[2] if len(args) > 2 and isinstance(args[2], tuple) else ()
    return StoredTensor(where, _sizes(shape), dtype, key_text(about[3])), key_text(about[2])


def _sizes(shape: Any) -> tuple[int, ...]:
    """ValueError: no tensor has that many dimensions, or of that size."""
    sizes = tuple(one for one in shape if isinstance(one, int)) if isinstance(shape, tuple | list) else ()
    if len(sizes) > MOST_DIMENSIONS or any(not 0 <= one < 1 << 63 for one in sizes):
        raise ValueError("it describes a tensor of a shape that none has")
    return sizes


def _sort(where: str, value: Any, counters: dict[str, int | float], others: list[str]) -> None:
    name = where.rpartition(".")[2]
    if name in COUNTERS and isinstance(value, int | float):
        counters[where] = value
    elif where:
        others.append(where)


# -- safetensors -------------------------------------------------------------------------------------------------------------


def _safetensors(path: Path) -> Contents:
    size = path.stat().st_size
    with opened(path) as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(LARGEST, size):
            raise ValueError(f"its header should have {length:,} bytes, the file has {size:,}")
        header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no table")
    header.pop("__metadata__", None)
    found = [_described(str(name), one) for name, one in header.items()]
    short = 8 + length + max((end for _, end in found), default=0) - size
    missing = (f"the last {short:,} bytes of {path.name}",) if short > 0 else ()
    return Contents(str(path), "safetensors", tuple(tensor for tensor, _ in found), missing=missing)


def _described(name: str, one: Any) -> tuple[StoredTensor, int]:
    """A tensor of a header, and where its bytes end.

    ValueError: that is not how safetensors describes one.
    """
    match one:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(), int(end)]}:
            return StoredTensor(name, _sizes(shape), _dtype(dtype)), end
    raise ValueError(f"its header describes no tensor under {name[:100]!r}")


def _dtype(word: str) -> str:
    known = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
             "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}  # fmt: skip
    return known.get(word, word)


def _safetensors_folder(folder: Path) -> Contents:
    parts = [_safetensors(path) for path in sorted(folder.glob("*.safetensors"))]
    missing = [one for part in parts for one in part.missing]
    for index in sorted(folder.glob("*.safetensors.index.json")):
        if index.stat().st_size <= LARGEST:
            missing += [name for name in _parts_named(index) if not (folder / name).is_file()]
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    return Contents(str(folder), "safetensors", tensors, files=len(parts), missing=tuple(missing))


def _parts_named(index: Path) -> list[str]:
    """The files that an index spreads the tensors over; ValueError: it is none."""
    content = parse_json(read_bytes(index, LARGEST))
    parts = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(parts, dict):
        raise ValueError(f"{index.name} maps no tensor to a file")
    return sorted({name for name in parts.values() if isinstance(name, str) and "\0" not in name})


# -- torch.distributed.checkpoint --------------------------------------------------------------------------------------------


def _distributed(folder: Path) -> Contents:
    metadata = folder / ".metadata"
    if metadata.stat().st_size > LARGEST:
        raise ValueError(f".metadata has {metadata.stat().st_size:,} bytes")
    found = read_inert(read_bytes(metadata, LARGEST))
    state = found.state if isinstance(found, Inert) else {}
    about, parts = state.get("state_dict_metadata"), state.get("storage_data")
    if not isinstance(about, dict):
        raise ValueError(".metadata says nothing of a state_dict")
    tensors, others = [], []
    for name, one in about.items():
        shape = one.state.get("size") if isinstance(one, Inert) else None
        if isinstance(shape, Inert):
            tensors.append(StoredTensor(key_text(name), _sizes(shape.args[0] if shape.args else ()), _dcp_dtype(one)))
        else:
            others.append(key_text(name))
    ends = _ends(parts if isinstance(parts, dict) else {})
    missing = [problem for name, end in sorted(ends.items()) if (problem := _part(folder, name, end))]
    kind = "torch.distributed.checkpoint"
    return Contents(str(folder), kind, tuple(tensors), {}, tuple(others), len(ends), tuple(missing))


def _dcp_dtype(one: Inert) -> str:
    """torch pickles the properties of a tensor as a tuple whose first entry is the dtype."""
    properties = one.state.get("properties")
    dtype = properties.args[0] if isinstance(properties, Inert) and properties.args else None
    return dtype.name.removeprefix("torch.") if isinstance(dtype, Inert) else ""


def _ends(parts: Mapping[Any, Any]) -> dict[str, int]:
    """Files by their name, and how long each has to be."""
    ends: dict[str, int] = {}
    for info in parts.values():
        about = info.state if isinstance(info, Inert) else {}
        name, offset, length = (about.get(key) for key in ("relative_path", "offset", "length"))
        if isinstance(name, str) and isinstance(offset, int) and isinstance(length, int):
            ends[name] = max(ends.get(name, 0), offset + length)
    return ends


def _part(folder: Path, name: str, end: int) -> str:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        return f"{name} lies outside the folder"
    if not path.is_file():
        return name
    short = end - path.stat().st_size
    return f"the last {short:,} bytes of {name}" if short > 0 else ""
