"""The verdict on jobs that are easy to get wrong: who ended how, what the ring forgot, whose clock it is, what is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from programs import judged
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, POSSIBLE, WARNING, Confidence, Finding
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.recording import Job, RankEnd, Recording, SourceLine
from distdoctor.recording.trace.events import Exiting, LongPhase, NewGroupBegun
from distdoctor.recording.trace.layout import Span, ranks_of
from distdoctor.testing import Script, TraceBuilder, recording
from distdoctor.testing.rank_trace import SECOND, START_NS

HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]


def codes(found: Recording) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.code, one.ranks) for one in judged(found)]


def findings(found: Recording) -> list[Finding]:
    return list(examine(found, HANGS, PLUGINS.remedies).findings)


def loop(ranks: int = 4, steps: int = 4) -> Script:
    script = recording(ranks)
    for _ in range(steps):
        script.collective("all_reduce", [8], site="train.py:41 step").collective(
            "barrier", site="train.py:57 save"
        ).step()
    return script


# --- the wrong group ---------------------------------------------------------------------------------------------------------


def _norms_on_the_default_group(ranks: int, members: list[int], others: list[list[int]]) -> Recording:
    script = recording(ranks).group("experts", members)
    for number, one in enumerate(others):
        script.group(f"g{number}", one)
    for step in range(4):
        script.collective("all_reduce", [64], group="experts", site="train.py:30 block")
        if step == 2:
            script.collective("all_reduce", [16], only=members, site="train.py:35 norm")
        script.collective("all_reduce", [8], site="train.py:41 train").step()
    return script.live()


@pytest.mark.parametrize(("ranks", "members"), [(5, [3, 4]), (3, [0, 1]), (3, [1, 2]), (4, [0, 1]), (4, [0, 2, 3])])
def test_members_of_a_smaller_group_that_forgot_to_name_it_are_told_whether_they_are_few_or_many(
    ranks: int, members: list[int]
) -> None:
    assert codes(_norms_on_the_default_group(ranks, members, [])) == [("DD124", tuple(members))]


def test_ranks_that_part_along_groups_that_all_have_did_not_forget_one() -> None:
    assert codes(_norms_on_the_default_group(4, [0, 1], [[2, 3]]))[0][0] == "DD101"


def test_a_last_stage_that_forgot_its_group_is_told_although_the_first_stage_waits_in_a_send() -> None:
    script = recording(4).group("first", [0, 1]).group("last", [2, 3])
    for _ in range(2):
        for rank in (0, 1):
            script.send(rank, rank + 2, [8], site="train.py:27 step")
            script.recv(rank + 2, rank, [8], site="train.py:30 step")
        script.collective("all_reduce", [1], only=[2, 3], site="train.py:19 mean_loss")
    (finding,) = findings(script.live(silent_for=90))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD124", (2, 3), LIKELY)
    assert finding.evidence["group_meant"] == "last"


def test_a_rank_that_used_to_take_part_has_skipped_the_call_whatever_groups_there_are() -> None:
    script = recording(3).group("pair", [0, 1])
    for step in range(4):
        script.collective("all_reduce", [16], site="train.py:35 norm").skipped_by(2 if step == 3 else ())
        script.collective("all_reduce", [8], site="train.py:41 train").step()

    assert codes(script.live()) == [("DD101", (2,))]


# --- endings -----------------------------------------------------------------------------------------------------------------


def test_the_first_failure_is_the_cause_and_its_echoes_are_not_findings() -> None:
    script = loop().raises(2, "ValueError: 7 classes, 8 given", site="train.py:40 step")
    (finding,) = findings(script.collective("all_reduce", [8], site="train.py:41 step").finished(survivors="fail"))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD110", (2,), CERTAIN)
    assert finding.title == "raised ValueError: 7 classes, 8 given"
    assert (finding.place.path, finding.place.line) == ("/job/train.py", 40)
    assert finding.evidence["failed_after_it"] == [0, 1, 3]
    assert finding.evidence["traceback"] == "rank-00002.a0.traceback.txt"


def test_a_rank_killed_by_nobody_of_ours_may_have_been_out_of_memory() -> None:
    (finding,) = findings(loop().killed(1).collective("barrier").live())

    assert (finding.code, finding.ranks, finding.confidence) == ("DD110", (1,), LIKELY)
    assert "out-of-memory killer or a process" in finding.title
    assert "if the kernel killed it for lack of memory" in finding.prescriptions[0].change


def test_ranks_that_the_launcher_ended_are_nobodys_fault() -> None:
    assert codes(loop().stays([0, 1, 2, 3]).finished()) == []


def test_ctrl_c_is_no_illness() -> None:
    assert codes(loop().raises(range(4), "KeyboardInterrupt: ").finished()) == []


def test_ranks_that_failed_alike_are_named_together() -> None:
    (event,) = judged(loop().raises(range(4), "FileNotFoundError: data.bin", site="train.py:9 main").finished())

    assert (event.code, set(event.ranks)) == ("DD110", {0, 1, 2, 3})


def test_failures_that_are_all_echoes_blame_nobody() -> None:
    found = loop().raises([0, 1], "RuntimeError: Connection closed by peer", site="train.py:41 step").unrecorded(3)
    (finding,) = findings(found.stays([2, 3]).finished(survivors="left"))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD110", (), POSSIBLE)
    assert finding.evidence["failed_after_it"] == [0, 1]


def test_the_one_rank_whose_end_nobody_saw_is_the_one_that_was_lost() -> None:
    script = loop().raises([0, 1, 3], "RuntimeError: Connection reset by peer", site="train.py:41 step").stays(2)
    (event,) = judged(script.finished(survivors="left"))

    assert (event.code, event.ranks, event.incident.ending and event.incident.ending.how) == ("DD110", (2,), "vanished")


def test_ranks_that_timed_out_waited_for_the_one_that_was_in_no_call() -> None:
    script = loop().stays(1).collective("all_reduce", [8], site="train.py:41 step")
    (finding,) = findings(script.finished(survivors="time out"))

    assert (finding.code, finding.ranks) == ("DD123", (1,))
    assert finding.severity is not None
    assert finding.severity > NOTE
    assert "gave up waiting for it after 30 min" in finding.title


def test_the_interpreters_last_words_are_given_a_second_before_they_count() -> None:
    script = loop().note(Exiting(), 1).collective("barrier", only=[0, 2, 3])
    film = script.film()

    assert codes(film.read(film.last_ns + SECOND // 10)) == []
    assert codes(film.read(film.last_ns + 2 * SECOND)) == [("DD109", (1,))]


def test_a_rank_that_left_before_the_others_failed_was_not_ended_by_the_signal_that_met_it_on_its_way_out() -> None:
    found = loop().exits(1).collective("all_reduce", [8], site="train.py:41 step").finished(survivors="fail")
    ends = {**found.job.ends, 1: RankEnd(None, 15, ended_by_launcher=True, at_ns=found.job.ends[1].at_ns + SECOND)}

    assert codes(replace(found, job=replace(found.job, ends=ends))) == [("DD109", (1,))]


def test_an_exit_code_without_a_log_blames_nobody() -> None:
    found = loop().unrecorded(3).raises(1).collective("barrier").finished(survivors="fail")
    ends = {**found.job.ends, 3: RankEnd(1, at_ns=START_NS)}

    assert codes(replace(found, job=replace(found.job, ends=ends))) == [("DD110", (1,))]


# --- what the ring forgot, what came again, whose clock ------------------------------------------------------------------------


def hung(keep: int, culprit: int = 2, after: int = 200) -> Recording:
    """Four ranks with rings of `keep` calls; one skips a call in the end."""
    logs = {}
    for rank in range(4):
        log = TraceBuilder(rank, world_size=4)
        for number in range(after):
            log.call("all_reduce", [8 + number % 3], site=f"train.py:{41 + number % 3} step")
        if rank != culprit:
            log.call("all_reduce", [8 + after % 3], site=f"train.py:{41 + after % 3} step", returned_ns=0)
        else:
            log.call("all_reduce", [8 + (after + 1) % 3], site=f"train.py:{41 + (after + 1) % 3} step", returned_ns=0)
        logs[rank] = log.build(keep={"calls": keep})
    return Recording(Job(world_size=4, running=True, read_at_ns=START_NS + 60 * SECOND), logs)


@pytest.mark.parametrize("keep", [1, 5, 50, 500])
def test_a_ring_that_forgot_nearly_everything_still_names_the_rank(keep: int) -> None:
    (event,) = judged(hung(keep))

    assert event.ranks == (2,)
    assert event.code == ("DD101" if keep > 8 else event.code)


def test_a_parting_that_every_ring_has_forgotten_is_not_invented_elsewhere() -> None:
    logs = {}
    for rank in range(3):
        log = TraceBuilder(rank, world_size=3)
        log.call("all_reduce", [8], reduce_op="max" if rank == 1 else "sum")
        for _ in range(50):
            log.call("barrier")
        logs[rank] = log.build(keep={"calls": 20})

    assert codes(Recording(Job(world_size=3, running=True, read_at_ns=START_NS + SECOND), logs)) == []


def test_a_torn_record_is_skipped_not_believed() -> None:
    found = loop().live()
    calls = found.ranks[1].calls
    torn = replace(found.ranks[1], calls=np.delete(calls, len(calls) - 3))

    assert codes(replace(found, ranks={**found.ranks, 1: torn})) == []


def test_a_record_that_was_read_while_it_was_written_is_not_believed() -> None:
    """The number and the stamps are new, what lies between them is half the record that lay there before."""
    found = loop(2).collective("all_reduce", [8], site="train.py:41 step").live()
    calls = found.ranks[1].calls.copy()
    for name in ("op", "signature", "site"):
        calls[name][-1] = calls[name][1]
    half = replace(found.ranks[1], calls=calls)

    assert codes(replace(found, ranks={**found.ranks, 1: half})) == []


def test_a_group_of_the_same_name_made_again_starts_again() -> None:
    logs = {}
    for rank in range(2):
        log = TraceBuilder(rank, world_size=2)
        for life in range(2):
            log.group("0", [0, 1])
            for _ in range(3 + rank * (1 - life)):  # the first life may end raggedly: both left it
                log.call("barrier", site="train.py:5 main")
        logs[rank] = log.build()
    found = Recording(Job(world_size=2, running=True, read_at_ns=START_NS + SECOND), logs)

    assert [len(group.tracks) for group in Verdict.of(found).facts.groups] == [2, 2]
    assert codes(found) == []


def test_groups_of_one_name_and_other_members_are_never_compared() -> None:
    logs = {}
    for rank, members in enumerate(([0, 1], [0, 1], [2, 3], [2, 3])):
        log = TraceBuilder(rank, world_size=4)
        log.group("1", members)
        log.call("all_reduce" if rank < 2 else "barrier", group="1")
        logs[rank] = log.build()

    assert codes(Recording(Job(world_size=4, running=True, read_at_ns=START_NS + SECOND), logs)) == []


def test_several_hosts_have_several_clocks_and_one_verdict() -> None:
    script = recording(4).host("far", [2, 3])
    for step in range(4):
        script.collective("all_reduce", [8], site="train.py:41 step")
        if step == 2:
            script.skipped_by(3)
        script.collective("barrier", site="train.py:57 save").step()

    assert codes(script.live()) == [("DD101", (3,))]


def test_silence_on_several_hosts_is_judged_by_the_wall_clock_and_with_patience_for_files_that_arrive_late() -> None:
    script = recording(4).host("far", [2, 3])
    for _ in range(5):
        script.collective("all_reduce", [8], site="train.py:41 step").step()
    script.stays(3).collective("barrier", site="train.py:57 save")

    assert codes(script.live(silent_for=60)) == []
    assert codes(script.live(silent_for=130)) == [("DD123", (3,))]


def in_new_group(log: TraceBuilder, *, earlier: tuple[int, ...] = (), members: str = "0,1,2") -> None:
    if earlier:
        log.note(NewGroupBegun(earlier, done_ns=1), site="train.py:8 main")
    log.note(NewGroupBegun(ranks_of(members)), site="train.py:9 main")


@pytest.mark.parametrize("earlier", [(0, 2), (0, 1)])
def test_a_rank_that_has_made_fewer_groups_looks_for_the_others_under_another_name(earlier: tuple[int, ...]) -> None:
    """Who has not made a group has missed it, be it one of its own or one of the others'."""
    logs = {}
    for rank in range(3):
        log = TraceBuilder(rank, world_size=3)
        log.group("0", [0, 1, 2])
        in_new_group(log, earlier=() if rank == 2 else earlier)
        logs[rank] = log.build()
    later = START_NS + 90 * SECOND
    (finding,) = findings(Recording(Job(world_size=3, running=True, read_at_ns=later, read_wall_ns=later), logs))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD119", (2,), LIKELY)
    assert finding.title.startswith("never called new_group for ")


@pytest.mark.parametrize(
    ("condition", "odd", "confidence"), [("if rank == 1:", (1,), LIKELY), ("if cached:", (0, 1), CERTAIN)]
)
def test_of_two_ranks_of_which_one_makes_a_group_only_a_condition_on_the_rank_names_the_odd_one(
    condition: str, odd: tuple[int, ...], confidence: Confidence
) -> None:
    source = f"def main(rank, cached):\n    {condition}\n        dist.new_group([0, 1])\n    dist.barrier()\n"
    script = recording(ranks=2)
    script.note(NewGroupBegun((0, 1)), [1], site="train.py:3 main")
    script.stays([1]).collective("barrier", site="train.py:4 main")

    (finding,) = findings(replace(script.live(silent_for=3), sources={"/job/train.py": source}))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD119", odd, confidence)
    assert finding.undecided == (len(odd) == 2)


def test_ranks_that_are_no_members_of_a_group_under_construction_are_not_accused() -> None:
    logs = {}
    for rank in range(3):
        log = TraceBuilder(rank, world_size=3)
        log.group("0", [0, 1, 2])
        if rank < 2:
            in_new_group(log, members="0,1")
        log.call("barrier", returned_ns=0) if rank == 2 else None
        logs[rank] = log.build()

    assert codes(Recording(Job(world_size=3, running=True, read_at_ns=START_NS + 3 * SECOND), logs)) == []


def test_whoever_waits_in_another_group_is_not_said_to_wait_for_the_rank_that_stayed_away() -> None:
    """A mesh of two by two without rank 3: rank 0 waits for rank 1, and ranks 1 and 2 for rank 3, in groups of their own."""
    script = recording(ranks=4)
    for made, members in enumerate([(0, 2), (1, 3), (0, 1), (2, 3)]):
        for rank, last in ((0, 2), (1, 1), (2, 3)):
            if made <= last:
                script.note(NewGroupBegun(members, done_ns=int(made < last)), [rank], site="train.py:15 main")
    script.stays([0, 1, 2]).collective("barrier", site="train.py:20 main")

    (finding,) = findings(script.live(silent_for=3))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD119", (3,), CERTAIN)
    assert finding.title == "never called new_group for ranks 1,3, in which rank 1 has waited"


def test_a_rank_that_alone_makes_a_group_is_not_said_never_to_have_made_it() -> None:
    script = recording(ranks=4).note(NewGroupBegun((0, 1, 2, 3)), [0], site="train.py:15 main")
    script.stays([0]).collective("barrier", site="train.py:20 main")

    (finding,) = findings(script.live(silent_for=3))

    assert (finding.code, finding.ranks) == ("DD119", (0,))
    assert finding.title == "called new_group for ranks 0,1,2,3, in which rank 0 has waited, and ranks 1-3 never did"


@pytest.mark.parametrize("everywhere", [False, True])
def test_groups_that_only_their_own_members_make_share_a_name(everywhere: bool) -> None:
    logs = {}
    for rank in range(4):
        log = TraceBuilder(rank, world_size=4)
        log.group("0", [0, 1, 2, 3])
        for members in [(0, 1), (2, 3)]:
            if rank in members or everywhere:
                log.note(NewGroupBegun(members, done_ns=0 if rank == 3 == members[-1] else 1), site="train.py:8 main")
        log.call("barrier", returned_ns=0) if rank < 2 else None
        logs[rank] = log.build()
    later = START_NS + 90 * SECOND
    told = findings(Recording(Job(world_size=4, running=True, read_at_ns=later, read_wall_ns=later), logs))

    shared = [(one.code, one.ranks, one.confidence) for one in told if "share one name" in one.title]
    assert shared == ([] if everywhere else [("DD119", (0, 1, 2, 3), LIKELY)])


@pytest.mark.parametrize("members_only", [False, True])
def test_groups_of_one_name_are_a_warning_where_the_job_came_through(members_only: bool) -> None:
    """With use_local_synchronization names are made of the members, and only these are asked to call."""
    script = recording(ranks=4)
    for members in ((0, 1), (2, 3)):
        script.note(NewGroupBegun(members, members_only, done_ns=1), members, site="train.py:8 main")
    told = findings(script.collective("barrier").finished())

    expected = [("DD119", (0, 1, 2, 3), WARNING, LIKELY)]
    assert [(f.code, f.ranks, f.severity, f.confidence) for f in told] == ([] if members_only else expected)


# --- which code ----------------------------------------------------------------------------------------------------------------


def test_two_ranks_are_a_tie_where_nothing_tells_and_both_sides_are_shown() -> None:
    script = (
        recording(2)
        .collective("all_reduce", [8], site="a.py:1 f", only=0)
        .collective("barrier", site="b.py:9 g", only=1)
    )
    (finding,) = findings(script.live())

    assert (finding.code, finding.ranks) == ("DD101", (0, 1))
    assert {place.ranks for place in finding.places} == {(0,), (1,)}


GUARDED = """\
def step(rank):
    if rank == 1:
        dist.barrier()
    dist.all_reduce(x)
"""


def test_of_two_sides_the_one_under_a_condition_on_the_rank_is_preferred() -> None:
    script = recording(2).source("train.py", GUARDED)
    script.collective("all_reduce", [8], site="train.py:4 step", only=0).collective(
        "barrier", site="train.py:3 step", only=1
    )
    (finding,) = findings(script.live())

    assert (finding.code, finding.ranks, finding.place.line) == ("DD112", (1,), 2)


def test_a_condition_that_cannot_have_done_it_is_not_blamed() -> None:
    script = recording(3).source("train.py", GUARDED)
    script.collective("all_reduce", [8], site="train.py:4 step", only=[0, 1]).collective(
        "barrier", site="train.py:3 step", only=2
    )

    assert codes(script.live()) == [("DD101", (2,))], "rank 2 is not rank 1"


BRANCHES = """\
def step(rank):
    if rank == 1:
        dist.broadcast(x, 0)
    else:
        dist.all_reduce(x)
"""


def test_two_branches_of_one_condition_are_a_mismatch() -> None:
    script = recording(3).source("train.py", BRANCHES)
    script.collective("broadcast", [8], site="train.py:3 step", only=1).collective(
        "all_reduce", [8], site="train.py:5 step", only=[0, 2]
    )
    (finding,) = findings(script.live())

    assert (finding.code, finding.ranks) == ("DD102", (1,))
    assert "`if rank == 1:` (line 2) sends the ranks down different branches" in finding.why


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_sum_that_another_sum_of_equal_size_answered_is_where_they_parted(ranks: int) -> None:
    """Sizes that disagree come two calls later; by then the ranks are long apart."""
    script = recording(ranks)
    for step in range(5):
        script.collective("all_reduce", [], site="a.py:1 f")
        if step == 4:
            script.skipped_by(1)
        script.collective("all_reduce", [], site="a.py:2 f")
        script.collective("all_reduce", [64], native=True, site="a.py:3 f").step()

    (event,) = judged(script.live())

    assert (event.code, event.ranks) == ("DD101", (1,))
    assert event.incident.odd is not None
    assert event.incident.usual is not None
    assert (event.incident.usual.site.line, event.incident.odd.site.line) == (1, 2)
    assert event.incident.usual.number == event.incident.odd.number == 13


def test_a_loop_that_once_ended_after_so_many_turns_accuses_nobody_who_takes_one_more() -> None:
    script = recording(ranks=2)
    for epoch in range(2):
        for _ in range(2):
            script.collective("all_reduce", [32, 6], site="train.py:9 average").collective(
                "all_reduce", [4], site="train.py:9 average"
            )
        if epoch:
            script.collective("all_reduce", [32, 6], site="train.py:9 average", only=1)
        script.collective("all_reduce", [1, 6], site="train.py:9 average", only=0 if epoch else None).collective(
            "barrier"
        )
    (finding,) = findings(script.live())

    assert (finding.ranks, finding.undecided) == ((0, 1), True)


def test_tensors_that_come_in_another_order_are_swapped_where_only_a_later_size_disagrees() -> None:
    shapes = {0: ([50, 16], [16, 48], [16, 64], [16, 50]), 1: ([16, 50], [16, 64], [50, 16], [16, 48])}
    script = recording(ranks=2)
    for rank, own in shapes.items():
        for shape in own:
            script.collective("broadcast", shape, root=0, site="train.py:27 synced", only=rank, asynchronous=True)
    (finding,) = findings(script.live())

    assert (finding.code, finding.ranks, finding.confidence, finding.undecided) == ("DD107", (0, 1), CERTAIN, True)
    assert finding.evidence["sequence_number"] == 1


def test_pairs_that_all_receive_first_are_told_together() -> None:
    script = recording(ranks=4)
    for rank in range(4):
        script.recv(rank, rank ^ 1, [8], site="train.py:11 swap")
    (finding,) = findings(script.live())

    assert (finding.code, finding.ranks) == ("DD114", (0, 1, 2, 3))
    assert finding.title == "every rank receives first: 2 rings of 2 recvs"


@pytest.mark.parametrize(("backend", "confidence"), [("gloo", CERTAIN), ("nccl", LIKELY)])
def test_ranks_that_all_send_first_are_told_so_and_proven_where_no_transport_buffers(
    backend: str, confidence: Confidence
) -> None:
    script = recording(ranks=2).backend(backend)
    for rank in range(2):
        script.send(rank, 1 - rank, [8], site="train.py:11 swap").recv(rank, 1 - rank, [8], site="train.py:12 swap")
    (finding,) = findings(script.live(rendezvous=True))

    assert (finding.code, finding.title) == ("DD114", "every rank sends first: a ring of 2 sends")
    assert finding.confidence == confidence


def test_a_ring_of_sends_is_told_as_one_although_only_one_of_the_ranks_leaves_its_habit_for_it() -> None:
    script = recording(ranks=2)
    for _ in range(20):
        script.send(0, 1, [8], site="pipe.py:13 push").recv(1, 0, [8], site="pipe.py:17 pull")
        script.send(1, 0, [8], site="pipe.py:13 push").recv(0, 1, [8], site="pipe.py:17 pull").step()
    script.send(0, 1, [8], site="pipe.py:13 push").recv(1, 0, [8], site="pipe.py:17 pull")
    for rank in range(2):  # what rank 1 always did here, and rank 0 never
        script.send(rank, 1 - rank, [8], site="pipe.py:13 push")
    (finding,) = findings(script.live(rendezvous=True))

    assert (finding.code, finding.ranks) == ("DD114", (0, 1))
    assert finding.title == "every rank sends first: a ring of 2 sends"


def test_ranks_that_all_receive_in_one_line_are_told_the_question_that_gives_them_one_order() -> None:
    swap = """\
def swap(x, peer):
    first = peer > -1
    if first:
        dist.recv(x, peer)
        dist.send(x, peer)
    else:
        dist.send(x, peer)
        dist.recv(x, peer)
"""
    script = recording(ranks=2).source("train.py", swap)
    for rank in range(2):
        script.recv(rank, 1 - rank, [8], site="train.py:4 swap")
    (finding,) = findings(script.live())

    assert (finding.code, finding.ranks, finding.undecided) == ("DD114", (0, 1), False)
    assert [place.role for place in finding.places[2:]] == ["decides: `if first`", "which depends on `peer > -1`"]


def test_of_two_ranks_the_one_that_left_is_named_where_the_other_makes_a_call_of_a_line_that_is_new() -> None:
    found = loop(2).exits(1).collective("all_reduce", [8], site="train.py:80 total").live()

    assert codes(found) == [("DD109", (1,))]


def epochs(*batches: tuple[int, int], before: Script | None = None) -> Recording:
    """Two ranks that meet after each epoch, and how many batches each of them had in it."""
    script = before or recording(2)
    for epoch in batches:
        for rank, count in enumerate(epoch):
            for _ in range(count):
                script.collective("all_reduce", [8], only=[rank], site="train.py:41 step")
        script.collective("barrier", site="train.py:57 evaluate")
    return script.live()


def test_of_two_ranks_the_one_that_leaves_a_loop_earlier_than_ever_is_named() -> None:
    (finding,) = findings(epochs((10, 10), (10, 4)))
    assert (finding.code, finding.ranks, finding.confidence) == ("DD101", (1,), LIKELY)

    interrupted = recording(2).collective("all_reduce", [8], site="train.py:41 step").collective("broadcast", [3])
    (finding,) = findings(epochs((10, 10), (10, 4), before=interrupted))
    assert finding.ranks == (1,)


def test_nobody_is_named_where_a_loop_has_no_habit() -> None:
    for earlier in ((4, 4), (3, 3)):
        (finding,) = findings(epochs(earlier, (10, 4)))
        assert (finding.ranks, finding.undecided) == ((0, 1), True), earlier


def test_swapped_calls_of_equal_size_are_told_by_their_lines() -> None:
    script = recording(4)
    for step in range(6):
        script.collective("all_reduce", [8], site="train.py:41 sync").collective(
            "all_reduce", [8], site="train.py:42 sync"
        )
        if step == 3:
            script.swapped_by(2)
        script.step()
    (finding,) = findings(script.finished())

    assert (finding.code, finding.ranks, finding.confidence) == ("DD107", (2,), LIKELY)
    assert finding.evidence["hangs"] is False


TWO_ORDERS = """\
def total(x):
    dist.all_reduce(x)

def train(rank, a, b):
    if order:
        total(b); total(a)
    else:
        total(a); total(b)
"""


FIRST, SECOND_CALL = (8, 16), (18, 26)  # columns of the two calls of a branch


def _through_a_helper(usual: list[Span], odd: list[Span]) -> Recording:
    """Four ranks that sum twice a step through one line of a helper; rank 2 calls it from other places."""
    path, traces = "/job/train.py", {}
    for rank in range(4):
        log = TraceBuilder(rank, world_size=4)
        for _ in range(4):
            for span in odd if rank == 2 else usual:
                chain = [(path, (2, 2, 4, 22), "total"), (path, span, "train")]
                log.call("all_reduce", [8], site=SourceLine(path, 2, "total"), chain=chain)
        traces[rank] = log.build()
    job = Job(world_size=4, ends={rank: RankEnd(0) for rank in range(4)})
    return Recording(job, traces, frozenset({"collectives", "progress"}), sources={path: TWO_ORDERS})


@pytest.mark.parametrize("line", [6, 8])
def test_swapped_calls_through_one_line_are_told_by_their_callers_and_in_two_branches_by_what_is_written(
    line: int,
) -> None:
    first, second = (8, 8, *FIRST), (8, 8, *SECOND_CALL)
    odd = [(6, 6, *FIRST), (6, 6, *SECOND_CALL)] if line == 6 else [second, first]
    (finding,) = findings(_through_a_helper([first, second], odd))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD107", (2,), LIKELY)
    assert finding.place.line == line
    assert finding.title.startswith(f"calls `total(b)` at train.py:{line} before `total(a)` at train.py:8")


def test_two_branches_that_call_the_same_in_the_same_order_are_no_swap() -> None:
    branches = [[(line, line, *FIRST), (line, line, *SECOND_CALL)] for line in (6, 8)]
    same = TWO_ORDERS.replace("total(b); total(a)", "total(a); total(b)")

    assert codes(replace(_through_a_helper(*branches), sources={"/job/train.py": same})) == []


def test_two_seconds_are_enough_for_what_can_be_proven() -> None:
    script = loop(2).group("a", [0, 1]).group("b", [0, 1])
    script.collective("barrier", group="a").collective("barrier", group="b").swapped_by(1)

    assert codes(script.live(silent_for=2)) == [("DD108", (0, 1))]


def test_a_slow_rank_is_a_note_and_a_long_phase_is_given_its_time() -> None:
    script = loop(3).note(LongPhase("checkpoint"), 0).stays(0).collective("barrier", site="train.py:60 save")

    assert codes(script.live(silent_for=30)) == []
    (finding,) = findings(script.live(silent_for=70))
    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD123", (0,), NOTE, POSSIBLE)
    assert "in checkpoint" in finding.title


def test_a_first_step_may_take_its_time() -> None:
    script = recording(2).compute(45, only=1).collective("all_reduce", [8])
    film = script.film()
    moment = START_NS + 40 * SECOND

    assert codes(film.read(moment)) == []


def test_the_earliest_parting_is_the_cause_and_later_ones_are_consequences() -> None:
    script = loop(4).group("late", [0, 1, 2, 3])
    script.collective("all_reduce", [8], site="train.py:41 step").instead(3, shape="[9]")
    script.collective("barrier", group="late", asynchronous=True).instead(2, op="broadcast", root=1)

    assert codes(script.live()) == [("DD103", (3,))]


SETTLE = """\
def order(right, left):
    return [right, left]
def settle(edges, rank, tile):
    for edge in order(rank, (rank - 1) % 2):
        dist.all_reduce(tile, group=edges[edge])
"""


def test_a_line_that_uses_groups_in_an_order_of_each_rank_shows_what_the_order_is_made_of() -> None:
    script = recording(ranks=2).source("train.py", SETTLE).group("a", [0, 1]).group("b", [0, 1])
    for group in "ab":
        script.collective("all_reduce", [4], group=group, site="train.py:5 settle")
    (finding,) = findings(script.swapped_by(1).live())

    assert finding.code == "DD108"
    assert [place.site.line for place in finding.places[-3:]] == [5, 4, 2]
