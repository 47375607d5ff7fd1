"""Recordings that are damaged on purpose, by what their files are made of: fields, lengths, offsets, opcodes, numbers, names."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distdoctor.recording.trace.layout import HEADER, HEADER_BYTES, SECTION, SECTIONS_AT

EXTREME = (0, 1, -1, 0x7F, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
Mutation = Callable[
    [random.Random, Path], bool
]  # whether the evidence is damaged for sure, so that nothing may be healthy


def _trace(chance: random.Random, folder: Path) -> Path:
    return chance.choice(sorted(folder.glob("*.trace")))


def _changed(chance: random.Random, path: Path, at: int, value: bytes) -> bool:
    content = bytearray(path.read_bytes())
    before = bytes(content)
    content[at : at + len(value)] = value
    path.write_bytes(content)
    return bytes(content) != before


def flipped_bit(chance: random.Random, folder: Path) -> bool:
    path = _trace(chance, folder)
    at = chance.randrange(path.stat().st_size)
    return _changed(chance, path, at, bytes([path.read_bytes()[at] ^ 1 << chance.randrange(8)]))


def header_field(chance: random.Random, folder: Path) -> bool:
    at = HEADER.offsets[chance.choice(list(HEADER.offsets))]
    value = struct.pack("<Q", chance.choice(EXTREME) & ((1 << 64) - 1))[: chance.choice((1, 2, 4, 8))]
    return _changed(chance, _trace(chance, folder), at, value)


def section_field(chance: random.Random, folder: Path) -> bool:
    at = SECTIONS_AT + chance.randrange(8) * SECTION.size + SECTION.offsets[chance.choice(list(SECTION.offsets))]
    value = struct.pack("<Q", chance.choice(EXTREME) & ((1 << 64) - 1))[: chance.choice((4, 8))]
    return _changed(chance, _trace(chance, folder), at, value)


def record_field(chance: random.Random, folder: Path) -> bool:
    path = _trace(chance, folder)
    at = chance.randrange(HEADER_BYTES, path.stat().st_size - 8) // 4 * 4
    return _changed(chance, path, at, struct.pack("<Q", chance.choice(EXTREME) & ((1 << 64) - 1)))


def cut_off(chance: random.Random, folder: Path) -> bool:
    path = _trace(chance, folder)
    os.truncate(path, chance.randrange(path.stat().st_size))
    return True


def noise(chance: random.Random, folder: Path) -> bool:
    _trace(chance, folder).write_bytes(chance.randbytes(chance.choice((0, 1, 100, 5000))))
    return True


def odd_file(chance: random.Random, folder: Path) -> bool:
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
    return True


def odd_name(chance: random.Random, folder: Path) -> bool:
    names = [
        "no-probe-\x1b[2J.txt",
        "rank-99999999999.a0.trace",
        "rank-²²²²².a0.trace",
        "rank-00000.a0.trace.memory-1-0",
        "host-x.json",
    ]
    path = folder / chance.choice(names)
    if chance.random() < 0.5:
        os.mkfifo(path)
    else:
        path.write_bytes(chance.randbytes(50))
    return False


def json_value(chance: random.Random, folder: Path) -> bool:
    path = chance.choice(sorted(folder.glob("host-*.json")))
    content = json.loads(path.read_text())
    where: Any = content
    while isinstance(where, dict | list) and where:
        key = chance.choice(list(where) if isinstance(where, dict) else range(len(where)))
        if not isinstance(where[key], dict | list) or not where[key] or chance.random() < 0.3:
            where[key] = chance.choice([None, -1, 10**30, 1e308, "²", "x" * 10_000, [], {}, [[]], True, "\udce9"])
            break
        where = where[key]
    path.write_text(json.dumps(content))
    return False


def json_text(chance: random.Random, folder: Path) -> bool:
    name = chance.choice(
        ["job.json", "comparison.json", "resumption.json", *(p.name for p in folder.glob("host-*.json"))]
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
    (folder / name).write_text(chance.choice(texts))
    return True


MUTATIONS: tuple[Mutation, ...] = (
    flipped_bit, header_field, section_field, record_field, cut_off, noise, odd_file, odd_name, json_value, json_text,
)  # fmt: skip
