"""The two-sided count: who has not enqueued is behind in its program, who has not completed is behind in its device."""

from __future__ import annotations

from distdoctor.diagnosis.hang.live.host_or_device import told_by_backend
from distdoctor.recording.flight.backend_state import BackendState, GroupState, Pending, told


def states(*counts: tuple[int, int]) -> dict[int, BackendState]:
    """One group; (last enqueued, last completed) of each rank."""
    found = {}
    for rank, (enqueued, completed) in enumerate(counts):
        pending = tuple(Pending("all_reduce", number, "started") for number in range(completed + 1, enqueued + 1))
        found[rank] = BackendState(rank, (GroupState("0", "default_pg", enqueued, enqueued, completed, pending),))
    return found


def test_a_rank_that_has_enqueued_less_is_behind_in_its_program() -> None:
    words = told_by_backend(states((12, 11), (11, 11), (12, 11)), range(3), "0")

    assert (
        words == "torch's flight recorder: rank 1 enqueued only up to #11, the others up to #12: the program is behind"
    )


def test_a_rank_that_has_completed_less_is_behind_in_its_device() -> None:
    words = told_by_backend(states((12, 11), (12, 11), (12, 10)), range(3), "0")

    assert words == (
        "torch's flight recorder: rank 2 has not completed #11, but the others have: look at its device and its links"
    )


def test_ranks_that_agree_accuse_nobody() -> None:
    assert told_by_backend(states((12, 11), (12, 11)), range(2), "0") == (
        "torch's flight recorder agrees: all ranks enqueued all_reduce #12, none completed it"
    )
    assert told_by_backend(states((12, 12), (12, 12)), range(2), "0") == ""


def test_three_different_numbers_accuse_nobody() -> None:
    assert told_by_backend(states((10, 10), (11, 11), (12, 12)), range(3), "0") == ""


def test_one_recorder_alone_says_nothing_about_the_others() -> None:
    assert told_by_backend(states((12, 11)), range(2), "0") == ""
    assert told_by_backend(states((12, 11), (11, 11)), range(2), "7") == ""


def test_ranks_that_say_the_same_stand_on_one_line() -> None:
    assert told(states((12, 10), (12, 10), (12, 12))) == [
        "ranks 0-1  default_pg: all_reduce #11 (started) and 1 more not complete",
        "rank 2  default_pg: complete up to #12",
    ]
