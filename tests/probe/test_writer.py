"""A trace can be read at any moment, whatever happened to its writer."""

from __future__ import annotations

import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from distdoctor.errors import UnreadableRecording
from distdoctor.probe.writer import TraceWriter, file_name
from distdoctor.recording.trace import layout
from distdoctor.recording.trace.events import UncaughtException
from distdoctor.recording.trace.reader import read_trace
from distdoctor.recording.trace.run_folder import read_run, trace_paths


def make(folder: Path, rank: int = 0) -> TraceWriter:
    return TraceWriter(str(folder), rank, 2, rank, 0)


def write_calls(trace: TraceWriter, count: int) -> None:
    shape = trace.texts.id("[4]")
    for number in range(1, count + 1):
        trace.calls.write(
            entered_ns=number, number=number, nbytes=16, signature=7, prefix=8, site_prefix=9, shape=shape, root=-1, op=1,
            reduce_op=1, dtype=1,
        )  # fmt: skip


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    trace = make(tmp_path, rank=1)
    write_calls(trace, 3)
    trace.note(UncaughtException(("ValueError: boom",), "trace.txt"))

    read = read_trace(tmp_path / file_name(1, 0))

    assert read.head.rank == 1
    assert read.head.pid == os.getpid()
    assert list(read.rows["calls"]["number"]) == [1, 2, 3]
    assert [read.texts[i] for i in read.rows["calls"]["shape"]] == ["[4]"] * 3
    event = read.rows["events"][0]
    assert (read.texts[event["text"]], read.texts[event["more"]]) == ("ValueError: boom", "trace.txt")


def test_a_call_that_is_written_in_parts_is_the_same_record(tmp_path: Path) -> None:
    trace = make(tmp_path)
    trace.calls.write(
        entered_ns=1, returned_ns=2, number=3, nbytes=4, signature=5, prefix=6, site_prefix=7, step=8, group=9, shape=10, site=11,
        root=-1, tag=12, op=13, flags=14, reduce_op=15, dtype=16, thread=17,
    )  # fmt: skip
    in_parts = trace.calls.parts_of(layout.CALL_PARTS)
    place = layout.CALL_PLACE.pack(9, 10, 11, -1, 12, 13, 14, 15, 16, 17)
    assert in_parts(1, 2, 3, layout.CALL_SIZE.pack(4, 5), 6, 7, 8, place) == 2

    first, second = read_trace(tmp_path / file_name(0, 0)).rows["calls"]
    names = [name for name in layout.CALL.offsets if name not in ("seq", "end")]
    assert [first[name] for name in names] == [second[name] for name in names]
    assert layout.CALL_PARTS.size == layout.CALL.size


def test_a_ring_that_came_round_keeps_the_newest_and_says_how_many_it_forgot(tmp_path: Path) -> None:
    trace = make(tmp_path)
    write_calls(trace, 8192 + 10)

    read = read_trace(tmp_path / file_name(0, 0))

    assert list(read.rows["calls"]["number"][[0, -1]]) == [11, 8202]
    assert read.lost["calls"] == 10


def test_a_place_that_was_given_away_is_not_patched(tmp_path: Path) -> None:
    trace = make(tmp_path)
    write_calls(trace, 1)
    write_calls(trace, 8192)  # the ring has come round: another record lies there now

    trace.calls.patch(1, layout.CALL.offsets["returned_ns"], 12345)

    assert not (read_trace(tmp_path / file_name(0, 0)).rows["calls"]["returned_ns"] == 12345).any()


def test_a_half_written_record_is_left_out(tmp_path: Path) -> None:
    trace = make(tmp_path)
    write_calls(trace, 5)
    path = tmp_path / file_name(0, 0)
    raw = bytearray(path.read_bytes())
    third_end = trace.calls._offset + 2 * layout.CALL.size + layout.CALL.offsets["end"]
    raw[third_end : third_end + 8] = struct.pack("<Q", 0)
    path.write_bytes(raw)

    assert list(read_trace(path).rows["calls"]["number"]) == [1, 2, 4, 5]


def test_texts_that_do_not_fit_become_the_empty_text(tmp_path: Path) -> None:
    trace = make(tmp_path)
    for number in range(100):
        trace.texts.id(f"{number}" + "x" * 10_000)

    assert trace.texts.full
    assert trace.texts.id("y" * 10_000) == 0
    assert trace.texts.id("0" + "x" * 10_000) == 1


def _with_records_of_another_size(raw: bytes) -> bytes:
    at = layout.SECTIONS_AT + layout.SECTION.offsets["stride"]
    return raw[:at] + struct.pack("<I", 8) + raw[at + 4 :]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda raw: b"not a trace at all" * 1000, "is no distdoctor trace"),
        (lambda raw: b"", "is no distdoctor trace"),
        (lambda raw: raw[: len(raw) // 2], "is truncated"),
        (lambda raw: raw[:8] + struct.pack("<I", layout.VERSION + 1) + raw[12:], "written by a newer distdoctor"),
        (lambda raw: raw[:8] + struct.pack("<I", layout.VERSION - 1) + raw[12:], "written by an older distdoctor"),
        (_with_records_of_another_size, "section 'calls' is none"),
    ],
    ids=["foreign", "empty", "truncated", "newer", "older", "another size"],
)
def test_a_damaged_trace_is_a_clear_error_and_the_other_ranks_are_read(tmp_path: Path, damage, words: str) -> None:
    for rank in (0, 1):
        write_calls(make(tmp_path, rank), 2)
    path = tmp_path / file_name(0, 0)
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(UnreadableRecording, match=words) as error:
        read_trace(path)
    recording = read_run(tmp_path)

    assert error.value.way_out
    assert list(recording.ranks) == [1]
    assert [trouble.rank for trouble in recording.troubles] == [0]


def test_the_trace_of_the_last_restart_counts(tmp_path: Path) -> None:
    for attempt in (0, 2, 1):
        TraceWriter(str(tmp_path), 0, 1, 0, attempt)

    assert trace_paths(tmp_path)[0].name == "rank-00000.a2.trace"


def test_a_second_process_does_not_write_over_a_rank(tmp_path: Path) -> None:
    make(tmp_path)

    with pytest.raises(FileExistsError):
        make(tmp_path)


def test_a_trace_takes_less_than_four_mebibytes(tmp_path: Path) -> None:
    make(tmp_path)

    assert (tmp_path / file_name(0, 0)).stat().st_blocks * 512 <= 4 * 2**20


def test_only_its_owner_can_read_a_trace(tmp_path: Path) -> None:
    make(tmp_path)

    assert (tmp_path / file_name(0, 0)).stat().st_mode & 0o077 == 0


def test_under_a_limit_of_file_sizes_the_trace_is_kept_in_memory(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
    try:
        trace = make(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, previous)
    write_calls(trace, 9000)

    assert trace.in_memory


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_on_a_full_disk_the_trace_is_kept_in_memory_and_read_from_outside(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        trace = make(small)
        write_calls(trace, 9000)
        recording = read_run(small)

        assert trace.in_memory
        assert recording.ranks[0].calls["number"][-1] == 9000
    finally:
        subprocess.run(["umount", "-l", small], check=True)


WRITER = """
import sys
from distdoctor.probe.writer import TraceWriter
folder, count = sys.argv[1], int(sys.argv[2])
import os
for number in range(count):
    pid = os.fork()
    if pid == 0:
        trace = TraceWriter(folder, number, 1, 0, 0)
        os.write(1, b"%d\\n" % os.getpid())
        n = 0
        while True:
            n += 1
            trace.calls.write(
                entered_ns=n, number=n, nbytes=n, signature=n, prefix=n, site_prefix=n, root=-1, op=1, reduce_op=1, dtype=1
            )
    os.waitpid(pid, 0)
"""


def test_a_sigkill_at_any_moment_costs_at_most_the_record_being_written(tmp_path: Path) -> None:
    """Writers, three hundred in CI, each killed after a random time below 2 ms, while it writes one record after another."""
    kills, generator, whole, torn = 5 * settings.default.max_examples, random.Random(7), 0, 0
    parent = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), str(kills)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    for number in range(kills):
        pid = int(parent.stdout.readline())
        time.sleep(generator.random() * 0.002)
        os.kill(pid, signal.SIGKILL)
        if number:  # the one before is surely dead: its parent has waited for it
            whole, torn = _count(tmp_path, number - 1, whole, torn)
    assert parent.wait(timeout=30) == 0
    whole, torn = _count(tmp_path, kills - 1, whole, torn)

    assert whole > kills
    assert torn <= kills


def _count(folder: Path, rank: int, whole: int, torn: int) -> tuple[int, int]:
    path = folder / file_name(rank, 0)
    rows = read_trace(path, only=frozenset({"calls"})).rows["calls"]
    numbers = rows["number"]
    if len(numbers):
        assert (np.diff(numbers) == 1).all()  # no hole: only the last may be missing
        assert (rows["nbytes"] == numbers).all()
        assert (rows["seq"] == numbers).all()
    path.unlink()
    return whole + len(numbers), torn + int(len(numbers) < (numbers[-1] if len(numbers) else 0))
