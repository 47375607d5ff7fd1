"""Recordings that are damaged on purpose, by what their files are made of: fields, lengths, offsets, opcodes, numbers, names."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distdoctor.recording.trace.host_file import check_of
from distdoctor.recording.trace.layout import HEADER, HEADER_BYTES, SECTION, SECTIONS_AT

EXTREME = (0, 1, -1, 0x7F, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
Mutation = Callable[[random.Random, Path], None]


def _plain(folder: Path, pattern: str) -> list[Path]:
    """Files that reading does not hang on; an earlier mutation may have put something else there."""
    return [
        path
        for path in sorted(folder.glob(pattern))
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 26
    ]


def _trace(chance: random.Random, folder: Path) -> Path:
    return chance.choice(_plain(folder, "*.trace"))


def _changed(chance: random.Random, path: Path, at: int, value: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)


def flipped_bit(chance: random.Random, folder: Path) -> None:
    path = _trace(chance, folder)
    at = chance.randrange(path.stat().st_size)
    _changed(chance, path, at, bytes([path.read_bytes()[at] ^ 1 << chance.randrange(8)]))


def header_field(chance: random.Random, folder: Path) -> None:
    at = HEADER.offsets[chance.choice(list(HEADER.offsets))]
    value = struct.pack("<Q", chance.choice(EXTREME) & ((1 << 64) - 1))[: chance.choice((1, 2, 4, 8))]
    _changed(chance, _trace(chance, folder), at, value)


def section_field(chance: random.Random, folder: Path) -> None:
    at = SECTIONS_AT + chance.randrange(8) * SECTION.size + SECTION.offsets[chance.choice(list(SECTION.offsets))]
    value = struct.pack("<Q", chance.choice(EXTREME) & ((1 << 64) - 1))[: chance.choice((4, 8))]
    _changed(chance, _trace(chance, folder), at, value)


def record_field(chance: random.Random, folder: Path) -> None:
    path = _trace(chance, folder)
    at = chance.randrange(HEADER_BYTES, path.stat().st_size - 8) // 4 * 4
    _changed(chance, path, at, struct.pack("<Q", chance.choice(EXTREME) & ((1 << 64) - 1)))


def cut_off(chance: random.Random, folder: Path) -> None:
    path = _trace(chance, folder)
    os.truncate(path, chance.randrange(path.stat().st_size))


def noise(chance: random.Random, folder: Path) -> None:
    _trace(chance, folder).write_bytes(chance.randbytes(chance.choice((0, 1, 100, 5000))))


def odd_file(chance: random.Random, folder: Path) -> None:
    path = _trace(chance, folder)
    path.unlink()
    kind = chance.choice(("fifo", "zero", "loop", "dangling", "folder", "sparse", "gone"))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind in ("zero", "loop", "dangling"):
        path.symlink_to({"zero": "/dev/zero", "loop": path.name, "dangling": "nowhere"}[kind])
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 3 << 30)


def odd_name(chance: random.Random, folder: Path) -> None:
    names = [
        "no-probe-\x1b[2J.txt",
        "rank-99999999999.a0.trace",
        "rank-²²²²².a0.trace",
        "rank-00000.a0.trace.memory-1-0",
        "host-x.json",
    ]
    path = folder / chance.choice(names)
    path.unlink(missing_ok=True)  # an earlier mutation may have made it a FIFO, which nobody reads
    if chance.random() < 0.5:
        os.mkfifo(path)
    else:
        path.write_bytes(chance.randbytes(50))


def json_value(chance: random.Random, folder: Path) -> None:
    path = chance.choice(_plain(folder, "host-*.json"))
    content = json.loads(path.read_text())
    where: Any = content
    while isinstance(where, dict | list) and where:
        key = chance.choice(list(where) if isinstance(where, dict) else range(len(where)))
        if not isinstance(where[key], dict | list) or not where[key] or chance.random() < 0.3:
            where[key] = chance.choice([None, -1, 10**30, 1e308, "²", "x" * 10_000, [], {}, [[]], True, "\udce9"])
            break
        where = where[key]
    if isinstance(content, dict) and "check" in content and chance.random() < 0.8:  # as who means it would write it
        del content["check"]
        content["check"] = check_of(content)
    path.write_text(json.dumps(content))


def json_text(chance: random.Random, folder: Path) -> None:
    name = chance.choice(
        ["job.json", "comparison.json", "resumption.json", *(p.name for p in _plain(folder, "host-*.json"))]
    )
    texts = [
        "[" * 200_000,
        '{"a":' * 100_000,
        "9" * 10_000,
        "",
        "{}",
        "null",
        "\x00",
        '{"ends": 3}',
        "NaN",
        '"' + "x" * 100_000,
    ]
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_text(chance.choice(texts))


MUTATIONS: tuple[Mutation, ...] = (
    flipped_bit, header_field, section_field, record_field, cut_off, noise, odd_file, odd_name, json_value, json_text,
)  # fmt: skip
