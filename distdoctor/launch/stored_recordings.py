"""What lies in a store and is read there: flight recorder dumps and host bundles come in batches, many files at once, and no
copy of them is made. Each batch is let go before the next one comes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from distdoctor.errors import UnreadableRecording
from distdoctor.launch.remote_places import StoredFile, contents, files_at, in_one_sentence, opened
from distdoctor.recording.bundle import MAGIC, unpack
from distdoctor.recording.flight.dumps import begins_like_dump, rank_in, read_bytes
from distdoctor.recording.flight.entries import FlightDump
from distdoctor.recording.flight.reading import (
    MOST_BYTES_AFAR,
    MOST_OF_A_BATCH,
    may_fork,
    read_batches,
    reading_processes,
    trouble_of,
)
from distdoctor.recording.held_rows import Alike
from distdoctor.recording.recording import Recording, Trouble

_BUNDLE = ".ddb"
_HEAD = 4096


@dataclass(frozen=True)
class DumpsAfar:
    """Some dump files of a store, by its address."""

    address: str
    files: tuple[StoredFile, ...]

    def __len__(self) -> int:
        return len(self.files)

    def dumps(self, troubles: list[Trouble]) -> Iterator[FlightDump]:
        """All files of the batch are on the way at once."""
        with in_one_sentence(self.address):
            found = contents(opened(self.address)[0], self.files)
        for file in self.files:
            try:
                dump = _dump(file, found.pop(file.path))
            except UnreadableRecording as trouble:
                troubles.append(trouble_of(trouble, rank_in(file.path)))
            else:
                if dump is not None:
                    yield dump


def _dump(file: StoredFile, content: bytes | str) -> FlightDump | None:
    """The dump in a file, None where it is no dump at all."""
    if isinstance(content, str):
        raise UnreadableRecording(f"{file.path} cannot be read: {content}", way_out="Try again, or leave it out.")
    if not begins_like_dump(content[:_HEAD]):
        return None
    return read_bytes(content, rank_in(file.path) or 0, file.path, file.written_ns)


def read_there(address: str, notice: Callable[[str], None], executor: Executor | None) -> list[Recording]:
    """The recordings at an address, where they are dumps or host bundles; [] where anything else lies there.

    Errors: see `brought_here`, `read_dumps` and `unpack`.
    """
    with ExitStack() as stack:
        if executor is None and may_fork():  # before the store's library starts its threads
            workers = len(os.sched_getaffinity(0))
            executor = stack.enter_context(reading_processes(workers, MOST_BYTES_AFAR))
        with in_one_sentence(address):
            system, root = opened(address)
            files = files_at(address, system, root)
            heads = _heads(system, files)
        if all(heads[suffix].startswith(MAGIC) for suffix in heads):
            return _bundles(address, system, files)
        dumps = [file for file in files if _may_be_dump(file, heads)]
        if not dumps or any(head.startswith(MAGIC) for head in heads.values()) or _is_run(files):
            return []
        return [_read_dumps(address, dumps, notice, executor)]


def _read_dumps(
    address: str, files: Sequence[StoredFile], notice: Callable[[str], None], executor: Executor | None
) -> Recording:
    pieces = [tuple(files[at : at + MOST_OF_A_BATCH]) for at in range(0, len(files), MOST_OF_A_BATCH)]

    def read(dumps: int) -> None:
        if dumps < len(files):
            notice(f"{dumps} of {len(files)} dumps are read")

    return read_batches([DumpsAfar(address, piece) for piece in pieces], executor, read)


def _bundles(address: str, system: Any, files: Sequence[StoredFile]) -> list[Recording]:
    found, alike = [], Alike()
    for at in range(0, len(files), MOST_OF_A_BATCH):
        with in_one_sentence(address):
            batch = contents(system, files[at : at + MOST_OF_A_BATCH])
        for path, content in batch.items():
            if isinstance(content, str):
                raise UnreadableRecording(f"{path} cannot be read: {content}", way_out="Try again, or leave it out.")
            found.append(unpack(content, path, alike=alike))
    return found


def _heads(system: Any, files: Sequence[StoredFile]) -> dict[str, bytes]:
    """How the first file of each suffix begins: the files of one job that are named alike are alike."""
    first: dict[str, StoredFile] = {}
    for file in files:
        first.setdefault(_suffix(file), file)
    return {suffix: bytes(system.cat_file(file.path, start=0, end=_HEAD)) for suffix, file in first.items()}


def _suffix(file: StoredFile) -> str:
    """`.json`, `.ddb`; of a rank's file without one that it is a rank's."""
    name = PurePosixPath(file.path)
    return "rank" if rank_in(name.name) is not None and name.suffix != _BUNDLE else name.suffix


def _may_be_dump(file: StoredFile, heads: dict[str, bytes]) -> bool:
    return _suffix(file) == "rank" and begins_like_dump(heads["rank"])


def _is_run(files: Sequence[StoredFile]) -> bool:
    names = [PurePosixPath(file.path).name for file in files]
    return any(name.endswith(".trace") or (name.startswith("host-") and name.endswith(".json")) for name in names)
