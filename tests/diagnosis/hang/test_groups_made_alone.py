"""A group that its members made without the others, in a job that came through all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, WARNING, Finding
from distdoctor.recording.recording import Job, RankEnd, Recording
from distdoctor.recording.trace.events import NewGroupBegun, UncaughtException
from distdoctor.testing import TraceBuilder, recording
from distdoctor.testing.rank_trace import SECOND, START_NS


def found(makers: list[list[int]], *, is_local: bool = False, sources: dict[str, str] | None = None) -> list[Finding]:
    """What is said when these ranks have called new_group for ranks 0 and 2, then for ranks 0 and 1, and the job is over."""
    script = recording(ranks=4)
    for members, ranks in zip([(0, 1), (0, 2)][: len(makers)][::-1], makers, strict=True):
        script.note(NewGroupBegun(members, is_local, done_ns=1), ranks, site="train.py:15 main")
    over = script.collective("barrier", site="train.py:20 main").finished()
    return PLUGINS.checks["DD119"].look(replace(over, sources=sources or {}))


def test_a_group_made_by_its_members_alone_is_a_warning_although_nobody_has_waited() -> None:
    (finding,) = found([[0, 1, 2, 3], [0, 1]])

    assert finding.title.startswith("never called new_group for ranks 0,1 (number 2), which ranks 0-1 made alone")
    assert (finding.ranks, finding.severity, finding.confidence) == ((2, 3), WARNING, LIKELY)
    assert finding.place.short == "train.py:15"


@pytest.mark.parametrize("is_local", [False, True])
def test_groups_that_all_make_or_that_are_local_are_no_illness(is_local: bool) -> None:
    assert found([[0, 1] if is_local else [0, 1, 2, 3]], is_local=is_local) == []


MAIN = (
    "\n" * 9
    + """def main(layout):
    rank = dist.get_rank()
    for members in layout:
        if {passes}:
            continue
        groups.append(dist.new_group(members))
"""
)


def test_the_condition_by_which_the_others_pass_the_group_by_is_shown() -> None:
    skipping = found([[0, 1, 2, 3], [0, 1]], sources={"/job/train.py": MAIN.format(passes="rank not in members")})
    broken = found([[0, 1, 2, 3], [0, 1]], sources={"/job/train.py": MAIN.format(passes="rank > 5")})

    assert [(one.site.line, one.role) for one in skipping[0].places[1:]] == [
        (13, "decides: `if rank not in members`"),
        (14, "leads away: `continue`"),
    ]
    assert 13 not in [one.site.line for one in broken[0].places]  # which answers all of these ranks alike


def named_apart(makers: list[int], *, raises: bool = False) -> list[Finding]:
    """Who has made the group of ranks 0 and 2 calls the next one by another name: the backend connects the wrong ranks. Rank 1
    waits in a call of that one; rank 2 may fail by itself."""
    logs = {}
    for rank in range(3):
        log = TraceBuilder(rank, world_size=3)
        log.group("0", [0, 1, 2])
        for number, members in enumerate([(0, 2), (0, 1)] if rank in makers else [(0, 1)], 1):
            log.note(NewGroupBegun(members, done_ns=1), site="train.py:10 build")
            if rank in members:
                log.group(str(number), members)
        if rank == 1:
            log.call("all_reduce", group="2" if rank in makers else "1", site="train.py:20 mean", returned_ns=0)
        if rank == 2 and raises:
            log.note(UncaughtException(("ValueError: no such sample",)), site="train.py:30 load")
        logs[rank] = log.build()
    later = START_NS + 90 * SECOND
    ends = {2: RankEnd(1, at_ns=later)} if raises else {}
    job = Job(world_size=3, running=True, read_at_ns=later, read_wall_ns=later, ends=ends)
    return PLUGINS.checks["DD119"].look(Recording(job, logs))


@pytest.mark.parametrize(
    ("makers", "odd", "undecided"), [([0, 2], (1,), False), ([1], (0, 1), True), ([0, 1, 2], None, None)]
)
def test_members_that_know_their_group_by_two_names_do_not_meet_in_its_calls(
    makers: list[int], odd: tuple[int, ...] | None, undecided: bool | None
) -> None:
    found = named_apart(makers)

    assert [(one.ranks, one.confidence, one.undecided) for one in found] == ([(odd, CERTAIN, undecided)] if odd else [])


def test_an_exception_of_a_ranks_own_is_a_cause_of_its_own() -> None:
    assert named_apart([0, 2], raises=True) == []


def test_one_name_for_two_groups_is_no_ring_of_a_rank_with_itself() -> None:
    """Ranks 0 and 1 have made a group of their own first: the group of all is their second, and rank 2's first, which it left."""
    logs = {}
    for rank in range(3):
        log = TraceBuilder(rank, world_size=3)
        log.group("0", [0, 1, 2])
        if rank < 2:
            log.note(NewGroupBegun((0, 1), done_ns=1), site="train.py:10 build")
            log.group("1", [0, 1])
            log.call("all_reduce", group="1", site="train.py:30 score")
            log.note(NewGroupBegun((), done_ns=0), site="train.py:20 main")
        else:
            log.note(NewGroupBegun((), done_ns=1), site="train.py:20 main")
            log.group("1", [0, 1, 2])
            log.call("all_gather", group="1", site="train.py:21 main", returned_ns=0)
        logs[rank] = log.build()
    later = START_NS + 90 * SECOND
    job = Recording(Job(world_size=3, running=True, read_at_ns=later, read_wall_ns=later), logs)
    hangs = [check for check in PLUGINS.checks.values() if check.family == "hang"]

    assert [(one.code, one.place.short) for one in examine(job, hangs).findings] == [("DD119", "train.py:10")]


def ring(made: dict[int, list[tuple[int, ...]]], *, is_local: bool = True) -> list[Finding]:
    """Each rank stands in the last group of its list; the ones before it are made."""
    script = recording(ranks=3)
    for number in range(2):
        for rank, groups in made.items():
            if len(groups) > number:
                done = -1 if number == len(groups) - 1 else 1
                script.note(NewGroupBegun(groups[number], is_local, done_ns=done), [rank], site="train.py:15 main")
    return PLUGINS.checks["DD119"].look(script.live(silent_for=20))


def test_members_that_have_counted_different_numbers_of_groups_do_not_meet_in_one_of_their_own() -> None:
    """A ring: what comes second for ranks 0 and 1 is the first group of rank 2."""
    (finding,) = ring({0: [(0, 1), (0, 2)], 1: [(0, 1), (1, 2)], 2: [(0, 2)]})

    assert finding.title == (
        "look for each other under different names in new_group for ranks 0,2: it is group number 2 that rank 0 made, and "
        "group number 1 that rank 2 made"
    )
    assert (finding.ranks, finding.confidence, finding.place.short) == ((0, 2), LIKELY, "train.py:15")


def test_calls_for_groups_of_others_count_nothing() -> None:
    """Every rank calls new_group for all pairs: ranks that are no members come back at once, and have not counted."""
    (finding,) = ring({0: [(0, 1), (0, 2)], 1: [(0, 1), (1, 2)], 2: [(0, 1), (0, 2)]})

    assert finding.title.endswith("it is group number 2 that rank 0 made, and group number 1 that rank 2 made")


def test_a_group_of_its_own_number_on_each_member_is_only_waited_for() -> None:
    """Rank 2 makes no other group before: it and rank 0 will meet, whatever rank 1 does."""
    assert [
        one.title
        for one in ring({0: [(0, 1), (0, 2)], 1: [(0, 1), (1, 2)], 2: [(1, 2), (0, 2)]})
        if "names" in one.title
    ] == []


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_rank_that_passed_a_group_by_is_told_by_the_group_that_it_has_gone_on_to(goes_on: bool) -> None:
    """Ranks 0 and 2 make a group; rank 0 has left it for the next one, in which rank 1 waits already, or is only late."""
    script = recording(ranks=3)
    script.note(NewGroupBegun((0, 2), done_ns=1), [0], site="pipe.py:27 groups").note(
        NewGroupBegun(()), [0], site="pipe.py:19 groups"
    )
    script.note(NewGroupBegun((0, 2)), [2], site="pipe.py:27 groups")
    if goes_on:
        script.note(NewGroupBegun(()), [1], site="pipe.py:19 groups")
    (finding,) = PLUGINS.checks["DD119"].look(script.stays([0, 1, 2]).live())

    passed = finding.title.startswith("never called new_group for ranks 0,2 (number 1), which ranks 0,2 made alone")
    assert passed is goes_on, finding.title
