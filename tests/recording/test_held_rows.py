"""Rows that are held by columns are the rows that were given, and what ranks have alike is there once."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.recording.held_rows import Alike, HeldTrace, hold
from distdoctor.recording.recording import no_rows
from distdoctor.recording.trace.layout import BLOCK, CALL, UPDATE
from distdoctor.recording.trace.reader import Rows, dtype_of

KINDS = {"calls": CALL, "updates": UPDATE, "blocks": BLOCK}


@given(st.sampled_from(sorted(KINDS)), st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 1 << 32))
def test_every_bit_of_every_row_comes_back(name: str, lengths: list[int], seed: int) -> None:
    dtype, random = dtype_of(KINDS[name]), np.random.default_rng(seed)
    ranks = [np.frombuffer(random.bytes(n * dtype.itemsize), dtype) for n in lengths]

    held = hold([{name: rows} for rows in ranks], Alike())

    back = [own[name].rows if name in own else np.empty(0, dtype) for own in held]
    assert [rows.tobytes() for rows in back] == [rows.tobytes() for rows in ranks]


@pytest.mark.parametrize("step", [1, 3, 1 << 40])
def test_small_numbers_and_large_steps_come_back(step: int) -> None:
    rows = np.zeros(300, dtype_of(CALL))
    rows["entered_ns"] = np.arange(300)[::-1] * step - (1 << 60)
    rows["number"] = (1 << 63) + np.arange(300, dtype=np.uint64)
    rows["root"] = -1

    (own,) = hold([{"calls": rows}], Alike())

    assert own["calls"].rows.tobytes() == rows.tobytes()


def trace(rows: Any) -> HeldTrace:
    names = ("groups", "steps", "events", "passes", "blocks")
    return HeldTrace(rank=0, calls=rows, texts=(), **{name: no_rows(name) for name in names})


def test_a_trace_gives_rows_that_nobody_can_change() -> None:
    rows: Rows = np.zeros(2, dtype_of(CALL))
    rows["number"] = 1, 2
    ((own,), log) = hold([{"calls": rows}], Alike()), trace(rows)
    assert log.calls is rows

    held = trace(own["calls"])

    assert held.calls["number"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        held.calls["number"] = 3


def test_columns_that_two_hosts_have_alike_are_one_and_go_with_their_hosts() -> None:
    alike, columns = Alike(), [np.arange(9, dtype=np.uint8) for _ in range(2)]

    kept = [alike.column(one) for one in columns]

    assert kept[0] is kept[1] is columns[0]
    del kept, columns
    gc.collect()
    again = np.arange(9, dtype=np.uint8)
    assert alike.column(again) is again
