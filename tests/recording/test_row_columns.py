"""What is left of rows when the rows of other ranks foretell them gives the same rows again, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from distdoctor.recording.kept_steps import newest_steps, spread_steps, steps_in_common
from distdoctor.recording.row_columns import MOST_ROWS, read_sections, write_sections
from distdoctor.recording.trace.layout import CALL, UPDATE
from distdoctor.recording.trace.reader import Rows, dtype_of


def any_rows(seed: int, count: int) -> Rows:
    """Updates of which every bit is random, but for the step."""
    random = np.random.default_rng(seed)
    rows: Rows = np.frombuffer(random.bytes(UPDATE.size * count), dtype_of(UPDATE)).copy()
    rows["step"] = np.arange(seed, seed + count)
    rows["loss"] = random.standard_normal(count).astype(np.float32)
    return rows


def calls(late_ns: int, count: int = 200) -> Rows:
    rows: Rows = np.zeros(count, dtype_of(CALL))
    random = np.random.default_rng(1)
    rows["number"] = rows["seq"] = rows["end"] = np.arange(1, count + 1)
    rows["entered_ns"] = np.cumsum(random.integers(1 << 20, 1 << 24, count)) + late_ns
    rows["returned_ns"] = rows["entered_ns"] + random.integers(1, 1 << 16, count)
    return rows


def test_rows_of_ranks_that_looked_at_other_steps_come_back_bit_for_bit() -> None:
    updates = [any_rows(3, 40), any_rows(7, 40), any_rows(3, 9), any_rows(99, 1)]
    ranks: list[dict[str, Rows]] = [*({"updates": rows} for rows in updates), {}]

    found = read_sections(*write_sections(ranks))

    assert [one.keys() for one in found] == [one.keys() for one in ranks]
    for one, other in zip(found, ranks, strict=True):
        assert all(one[name].tobytes() == other[name].tobytes() for name in other)


def test_calls_that_every_rank_makes_a_little_later_take_next_to_nothing() -> None:
    one = write_sections([{"calls": calls(0)}])[1]
    both = write_sections([{"calls": calls(0)}, {"calls": calls(500)[1:]}])[1]

    assert sum(map(len, both)) < 1.5 * sum(map(len, one))


@pytest.mark.parametrize("damage", ["rows", "way", "column", "columns", "fields"])
def test_what_was_not_written_so_is_refused(damage: str) -> None:
    sections, columns = write_sections([{"calls": calls(0)}])
    section = sections[0]["calls"]
    if damage == "rows":
        section.rows = MOST_ROWS + 1
    elif damage == "way":
        section.ways[0] = 4  # no rank before the first
    elif damage == "column":
        columns[0] += b"x"
    elif damage == "columns":
        del columns[3:]
    else:
        del section.ways[-1]

    with pytest.raises((ValueError, IndexError)):
        read_sections(sections, columns)


def test_steps_that_travel_are_the_same_ones_from_ranks_that_have_not_looked_at_all_of_them() -> None:
    many, fewer = any_rows(0, 300), any_rows(0, 280)

    steps = [set(spread_steps(rows, 16)["step"].tolist()) for rows in (many, fewer)]

    assert steps[0] >= set(range(284, 300))
    assert all(16 < len(one) <= 32 for one in steps)
    assert len(steps[0] & steps[1]) >= 8
    assert steps_in_common([many[5:], fewer[:9]]).tolist() == [5, 6, 7, 8]
    assert newest_steps(many, 4, 3)["step"].tolist() == [297, 298, 299]
