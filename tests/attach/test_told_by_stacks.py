"""What stacks alone tell about ranks that are in different calls, and what they must leave open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.attach.py_spy import PySpyDump
from distdoctor.attach.snapshot import _keeps_the_gil, _lasting, _Sample
from distdoctor.cli.hang_dump import _exit_code
from distdoctor.cli.looked_at import LookedAt
from distdoctor.cli.settings import Settings
from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import ERROR, LIKELY, NOTE, POSSIBLE, Finding, Stalls
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.recording.py_spy_dump import thread_of
from distdoctor.recording.recording import Recording
from distdoctor.recording.stacks import FileWait, Link, RankStacks, ThreadStack
from distdoctor.report.first_line import answer
from distdoctor.testing import Script
from distdoctor.testing.stacks import (
    FETCH,
    LOADER,
    TORCH,
    WORKER,
    frame,
    gone,
    in_collective,
    looked_at,
    process,
    rank,
    torch_frame,
)

HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]
SOURCE = """\
def step(rank, handles, loss, best):
    for handle in handles:
        handle.wait()
    if rank == 1:
        dist.recv(x, src=0)
    if rank == 0:
        dist.barrier()
    else:
        dist.all_reduce(x)
    if rank == 0:
        get_model_state_dict(model)
    dist.all_reduce(x)
    if loss < best:
        dist.broadcast(x, src=0)
"""


def seen(*ranks: object) -> Finding:
    recording: Recording = looked_at(*ranks, sources={"train.py": SOURCE})  # type: ignore[arg-type]
    (finding,) = examine(recording, HANGS, PLUGINS.remedies, live=True).findings
    return finding


def test_ranks_that_wait_for_a_handle_at_one_line_accuse_nobody() -> None:
    finding = seen(rank(0, frame("train.py:3 step")), rank(1, frame("train.py:3 step")))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD122", (0, 1), POSSIBLE)
    assert finding.title.startswith("have all waited for the same handle")


@pytest.mark.parametrize(
    "line", ['self.store.wait([f"ready/{stage}"], LIMIT)', "store.wait(keys)", 'kv.wait(["ready"])']
)
def test_a_rank_that_waits_for_a_key_of_a_store_waits_for_no_handle(line: str) -> None:
    sources = {"train.py": SOURCE, "cache.py": f"def build(store, stage):\n    {line}\n"}
    ranks = [in_collective(0, site="train.py:12 step"), rank(1, frame("cache.py:2 build"))]
    (finding,) = examine(looked_at(*ranks, sources=sources), HANGS, PLUGINS.remedies, live=True).findings

    assert (finding.code, finding.ranks, finding.place.line) == ("DD116", (1,), 2)


def test_a_receive_of_one_rank_has_no_send() -> None:
    finding = seen(in_collective(0, site="train.py:12 step"), in_collective(1, "recv", "train.py:5 step"))

    assert (finding.code, finding.ranks, finding.place.line) == ("DD113", (1,), 5)
    assert finding.prescriptions[0].slug == "pair-send-with-recv"


def test_a_send_and_a_receive_that_do_not_meet_are_shown_with_their_tags() -> None:
    send = in_collective(0, "send", "train.py:7 step", arguments={"dst": "1", "tag": "7"})
    finding = seen(send, in_collective(1, "recv", "train.py:5 step", arguments={"src": "0", "tag": "8"}))

    assert (finding.code, finding.ranks, finding.confidence, finding.undecided) == ("DD113", (0, 1), LIKELY, True)
    assert finding.prescriptions[0].change == (
        "give the send of train.py:7 (tag 7) and the recv of train.py:5 (tag 8) the same tag, group and size"
    )


def test_a_group_that_one_rank_makes_is_named_by_the_function_that_the_user_called() -> None:
    inner = torch_frame("_new_group_with_tag")
    makes = rank(0, inner, torch_frame("new_group"), frame("train.py:7 step"))

    finding = seen(makes, in_collective(1, site="train.py:12 step"))

    assert (finding.code, finding.ranks) == ("DD119", (0,))
    assert finding.prescriptions[0].change.startswith("call the new_group of train.py:7 on every rank")


def test_two_branches_of_one_condition_are_two_sides_of_a_tie() -> None:
    finding = seen(in_collective(0, "barrier", "train.py:7 step"), in_collective(1, site="train.py:9 step"))

    assert (finding.ranks, finding.confidence, finding.undecided) == ((0, 1), LIKELY, True)


def test_a_receiver_and_the_rank_that_it_awaits_are_named_together() -> None:
    """That the receive stands under a condition on the rank is a role, and no sign of who is wrong."""
    receives = in_collective(1, "recv", "train.py:5 step", arguments={"src": "2"})
    finding = seen(in_collective(0, site="train.py:12 step"), receives, in_collective(2, site="train.py:12 step"))

    assert (finding.code, finding.ranks, finding.confidence, finding.undecided) == ("DD113", (1, 2), LIKELY, True)


def test_ranks_that_make_groups_of_other_numbers_have_not_made_the_same_ones() -> None:
    def makes(number: int, name: str) -> RankStacks:
        named = torch_frame("_new_process_group_helper", group_name=f'"{name}"')
        return rank(number, named, torch_frame("new_group"), frame("train.py:12 step"))

    finding = seen(makes(0, "2"), makes(1, "2"), makes(2, "1"))
    assert (finding.code, finding.ranks, finding.confidence) == ("DD119", (2,), LIKELY)
    assert "rank 2 waits in new_group number 1" in finding.title

    finding = seen(makes(0, "2"), makes(1, "2"))
    assert (finding.code, finding.title[:26]) == ("DD122", "have all been in new_group")


def test_ranks_that_make_different_groups_are_not_in_one_call() -> None:
    """Groups that only their members make have digests for names: who waits in another one than the rest waits for somebody."""

    def makes(number: int, name: str) -> RankStacks:
        named = torch_frame("_new_process_group_helper", group_name=f'"{name}"')
        return rank(number, named, torch_frame("new_group"), frame("train.py:12 step"))

    apart = looked_at(makes(0, "1f107ed8"), makes(1, "bc69f4bf"), makes(2, "4314d7ee"))
    assert "DD122" not in {one.code for one in examine(apart, HANGS, PLUGINS.remedies, live=True).findings}


def test_a_state_dict_that_waits_for_the_others_shards_is_no_code_of_its_own() -> None:
    inside = torch_frame("get_model_state_dict", f"{TORCH}/distributed/checkpoint/state_dict.py")
    waits = torch_frame("wait_tensor", f"{TORCH}/distributed/_functional_collectives.py")

    shards = torch_frame("redistribute", f"{TORCH}/distributed/tensor/_api.py")

    finding = seen(rank(0, waits, shards, inside, frame("train.py:11 step")), in_collective(1, site="train.py:12 step"))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD125", (0,), LIKELY)
    assert "`if rank == 0:` (line 10)" in finding.prescriptions[0].change


def test_the_condition_around_a_call_is_told_without_an_accusation() -> None:
    finding = seen(in_collective(0, site="train.py:12 step"), in_collective(1, "broadcast", "train.py:14 step"))

    assert (finding.code, finding.ranks, finding.confidence, finding.undecided) == ("DD101", (0, 1), LIKELY, True)
    assert finding.why.endswith("; most likely they diverged at `if loss < best` (train.py:13)")
    assert ("decides: `if loss < best`", 13) in [(place.role, place.site.line) for place in finding.places]
    assert finding.evidence["cycle"] == [
        "rank 0 waits in all_reduce (train.py:12) for rank 1",
        "rank 1 waits in broadcast (train.py:14) for rank 0",
    ]


@pytest.mark.parametrize(("call", "peer", "word"), [("recv", "src", "receives"), ("send", "dst", "sends")])
def test_a_ring_of_one_direction_is_told_edge_by_edge(call: str, peer: str, word: str) -> None:
    ranks = [in_collective(one, call, "train.py:5 step", arguments={peer: str((one + 1) % 3)}) for one in range(3)]
    finding = seen(*ranks)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD114", (0, 1, 2), LIKELY)
    assert finding.title == f"every rank {word} first: a ring of 3 {call}s"
    towards = "from" if call == "recv" else "to"
    assert finding.evidence["cycle"] == [
        f"rank {one} waits in {call} {towards} rank {(one + 1) % 3} (train.py:5)" for one in range(3)
    ]


def test_a_send_that_its_receiver_answers_is_no_part_of_a_ring() -> None:
    send = in_collective(0, "send", "train.py:7 step", arguments={"dst": "1"})
    finding = seen(send, in_collective(1, "recv", "train.py:5 step", arguments={"src": "0"}))

    assert "cycle" not in finding.evidence


def _cut(*numbers: int, peer: int, address: str = "10.0.0.2:4711", **more: object) -> Recording:
    links = (Link(peer, address, 210_000, 7),)
    ranks = [in_collective(0, site="train.py:12 step", links=links)]
    return looked_at(*ranks, *(in_collective(one, site="train.py:9 step") for one in numbers), **more)


def test_a_dead_connection_is_the_reason_even_where_one_rank_is_a_call_ahead() -> None:
    (finding,) = examine(_cut(1, peer=1), HANGS, PLUGINS.remedies, live=True).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD122", (0, 1), LIKELY)
    assert finding.title.startswith("the connection from rank 0 to rank 1 (10.0.0.2:4711) is dead")


def test_a_dead_connection_to_another_host_is_named_by_its_address() -> None:
    (finding,) = examine(_cut(peer=-1, elsewhere=(1,)), HANGS, PLUGINS.remedies, live=True).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD122", (0,), POSSIBLE)
    assert "10.0.0.2:4711, on another host" in finding.title


@pytest.mark.parametrize(
    ("address", "elsewhere"), [("10.0.0.2:4711", ()), ("8.8.8.8:4711", (2,)), ("[fd00::2]:443", (2,))]
)
def test_a_dead_connection_to_something_that_is_no_rank_accuses_nobody(
    address: str, elsewhere: tuple[int, ...]
) -> None:
    cut = _cut(1, peer=-1, address=address, elsewhere=elsewhere)

    assert examine(cut, HANGS, PLUGINS.remedies, live=True).findings[0].code == "DD101"


def test_ranks_in_a_call_that_was_given_a_group_may_be_in_different_groups() -> None:
    given = {"group": "<ProcessGroup at 0x7f>"}
    finding = seen(*(in_collective(number, site="train.py:9 step", arguments=given) for number in range(2)))

    assert (finding.code, finding.confidence) == ("DD122", POSSIBLE)
    assert "two groups in different order" in finding.why


@pytest.mark.parametrize(("group", "confidence"), [("None", LIKELY), ("<ProcessGroup at 0x7f>", POSSIBLE)])
def test_a_rank_that_has_gone_may_be_no_member_of_the_group_that_a_call_was_given(group: str, confidence: str) -> None:
    finding = seen(in_collective(0, site="train.py:9 step", arguments={"group": group}), gone(1))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD110", (1,), confidence)


def test_the_condition_under_which_a_rank_that_has_gone_left_the_loop_is_shown() -> None:
    loop = "def run():\n    for batch in loader:\n        dist.all_reduce(x)\n        if loss < best:\n            return\n"
    recording = looked_at(in_collective(0, site="train.py:3 run"), gone(1), sources={"train.py": loop})

    (finding,) = examine(recording, HANGS, PLUGINS.remedies, live=True).findings

    assert "`if loss < best:` (train.py:4)" in finding.why


@pytest.mark.parametrize(("cpu", "codes"), [(0.0, ["DD122"]), (0.2, [])])
def test_recorded_ranks_that_wait_in_backward_are_in_the_backend_unless_bytes_still_move(
    cpu: float, codes: list[str]
) -> None:
    script = Script(2)
    for _ in range(5):
        script.collective("all_reduce", [8], site="train.py:9 step").step()
    backward = torch_frame("_engine_run_backward", f"{TORCH}/autograd/graph.py")
    ranks = [rank(number, backward, frame("train.py:9 step"), cpu_share=cpu) for number in range(2)]
    recording = replace(script.live(silent_for=20), stacks=looked_at(*ranks).stacks)

    findings = examine(recording, HANGS, PLUGINS.remedies, live=True).findings

    assert [finding.code for finding in findings] == codes
    assert all(finding.confidence == LIKELY for finding in findings)


def _half_of_a_recorded_job(behind: int) -> Recording:
    """Ranks 0 and 1 of four wait here in the last call; ranks 2 and 3 are on another host, of whose stacks nothing is known."""
    script = Script(4)
    for _ in range(5):
        script.collective("all_reduce", [8], site="train.py:9 step").step()
    last = script.collective("all_reduce", [8], site="train.py:9 step")
    if behind >= 0:
        last.skipped_by(behind)
    stacks = looked_at(*(in_collective(number, site="train.py:9 step") for number in range(2)), elsewhere=(2, 3)).stacks
    return replace(script.live(silent_for=3), stacks=stacks)


@pytest.mark.parametrize("behind", [-1, 3])
def test_ranks_that_a_recorded_rank_on_another_host_keeps_waiting_are_not_in_the_backend(behind: int) -> None:
    findings = examine(_half_of_a_recorded_job(behind), HANGS, PLUGINS.remedies, live=True).findings

    assert ("DD122" in {finding.code for finding in findings}) == (behind < 0)
    changes = [one.change for finding in findings for one in finding.prescriptions]
    assert not any("start it with distdoctor run" in change for change in changes)


def test_a_rank_that_stays_in_one_function_for_long_is_named_with_it() -> None:
    """Its line changes all the time, in torch as well: which call went on through all samples is what tells."""
    loop = frame("train.py:30 settle")
    inside = {"still": 0.0, "cpu_share": 1.0, "moved": True, "lasting": loop}
    torchs = frame(f"{TORCH}/nn/functional.py:9 relu")
    waits = in_collective(0, still=26.0)

    early = looked_at(in_collective(0, still=20.0), rank(1, torchs, loop, **inside))
    assert examine(early, HANGS, PLUGINS.remedies, live=True).findings == ()
    reads = looked_at(
        waits, rank(1, frame("train.py:7 read"), loop, **inside | {"cpu_share": 0.1, "bytes_moved": 1 << 20})
    )
    assert examine(reads, HANGS, PLUGINS.remedies, live=True).findings == ()
    for innermost in (torchs, frame("train.py:7 look")):
        finding = seen(waits, rank(1, innermost, loop, **inside))
        assert (finding.code, finding.ranks, finding.confidence) == ("DD116", (1,), POSSIBLE)
        assert finding.title == "has been in settle while the others wait for 26 s"
        assert (finding.place, finding.evidence["thread"]) == (loop.site, "main")


@pytest.mark.parametrize("cpu", [0.1, 0.9])
def test_a_rank_that_gets_little_of_a_core_computes_like_one_that_gets_it_whole(cpu: float) -> None:
    """Where other work keeps the cores, a loop on one line runs a part of the time only: that is no standstill."""
    loop = frame("train.py:30 settle")

    finding = seen(
        in_collective(0, still=60.0), rank(1, loop, still=0.0, cpu_share=cpu, ready_share=0.98, lasting=loop)
    )

    assert (finding.title, finding.confidence) == ("has been in settle while the others wait for 60 s", POSSIBLE)


def _sampled(*frames: str, holder: int = 0) -> PySpyDump:
    """One sample of process 7: the main thread in these frames, innermost first, and thread 8, one of which holds the GIL."""
    main = ThreadStack(7, tuple(map(frame, frames)), holds_gil=holder == 7)
    return PySpyDump(7, (main, ThreadStack(8, (frame("spin.py:3 turn"),), "turner", holds_gil=holder == 8)))


def test_the_call_that_lasts_is_the_innermost_that_all_samples_were_inside() -> None:
    first = _sampled("train.py:7 look", "train.py:30 settle", "train.py:90 main")
    other_line = _sampled("train.py:8 look", "train.py:30 settle", "train.py:90 main")
    other_call = _sampled("train.py:7 look", "train.py:31 settle", "train.py:90 main")
    elsewhere = _sampled("train.py:50 save")

    assert _lasting([first, other_line], 7) == frame("train.py:8 look")
    assert _lasting([first, other_call], 7) == frame("train.py:31 settle")
    assert _lasting([first, elsewhere], 7) is None
    assert _lasting([first], 7) is None


def test_a_thread_that_was_met_with_the_gil_twice_is_looked_at_more_often() -> None:
    kept = [_sampled("train.py:41 step", holder=8)] * 2

    assert _keeps_the_gil([_Sample(0.0, {}, {7: dump}) for dump in kept], 7)
    assert not _keeps_the_gil([_Sample(0.0, {}, {7: dump}) for dump in (*kept, _sampled("train.py:41 step"))], 7)


SUBPROCESS = "/usr/lib/python3.11/subprocess.py:1264 wait"


def waits_for_its_child(number: int, **of_child: object) -> RankStacks:
    """A rank inside Popen.wait(), with the child that it has started."""
    seen = rank(number, frame(SUBPROCESS), frame("train.py:3 step"), still=30.0)
    return replace(seen, children=(process(pid=3000 + number, **of_child),))  # type: ignore[arg-type]


def test_ranks_that_all_stand_in_their_own_code_are_told_and_where() -> None:
    finding = seen(waits_for_its_child(0), waits_for_its_child(1))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD116", (0, 1), POSSIBLE)
    assert finding.title.startswith("have not moved for 30 s, and none waits for another: each is at `handle.wait()`")
    assert (finding.place.line, finding.stalls, finding.severity) == (3, Stalls.MAYBE, NOTE)


def test_ranks_whose_children_are_at_work_are_not_stuck() -> None:
    found = examine(looked_at(waits_for_its_child(0), waits_for_its_child(1, moved=True)), HANGS, {}, live=True)

    assert not found.findings


def asks_for_the_lock(number: int, holder: int) -> RankStacks:
    """A rank in flock(), which another rank's process holds."""
    lock = FileWait("flock", "/job/index.lock", "file", 1000 + holder)
    return rank(number, frame("train.py:14 step"), waits_for=lock)


def test_who_keeps_a_file_lock_in_a_barrier_is_blamed_and_not_who_asks_for_it() -> None:
    finding = seen(in_collective(0, "barrier"), asks_for_the_lock(1, holder=0), asks_for_the_lock(2, holder=0))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD116", (0,), LIKELY)
    assert "holds the lock on /job/index.lock while it waits in barrier" in finding.title
    assert finding.title.endswith("ranks 1-2 cannot come there without that lock")
    assert finding.delays == (1, 2)


def test_who_asks_for_a_file_lock_that_a_stuck_rank_keeps_is_its_victim() -> None:
    finding = seen(
        rank(0, frame("train.py:11 step")),
        asks_for_the_lock(1, holder=2),
        asks_for_the_lock(2, holder=0),
        in_collective(3),
    )

    assert (finding.code, finding.ranks) == ("DD116", (0,))


def test_nobody_is_accused_while_the_rank_that_keeps_a_file_lock_works() -> None:
    """The first rank prepares a data set under a lock; it does not wait for the one that asks for the lock."""
    busy = rank(0, frame("train.py:11 step"), still=0.0, cpu_share=0.98, moved=True)

    assert not told(busy, asks_for_the_lock(1, holder=0), in_collective(2))


def test_a_rank_that_keeps_a_file_lock_in_a_smaller_group_may_wait_for_another_than_who_asks() -> None:
    """Then it stays open who holds it up; what the one that asks waits for is said as before."""
    keeper = in_collective(0, arguments={"group": "<ProcessGroup>"})
    found = told(keeper, asks_for_the_lock(1, holder=0), rank(2, frame("train.py:11 step")))

    assert [one.ranks for one in found] == [(1,), (2,)]


def test_a_rank_that_keeps_a_file_lock_in_a_call_of_all_ranks_is_blamed_beside_those_that_are_stuck_elsewhere() -> None:
    """The stack shows the default group as it shows any other; the line says that none is passed."""
    keeper = in_collective(0, site="train.py:12 step", arguments={"group": "<ProcessGroup>"})
    found = told(keeper, asks_for_the_lock(1, holder=0), rank(2, frame("train.py:11 step")))

    assert [one.ranks for one in found] == [(0,), (2,)]


def told(*ranks: RankStacks) -> tuple[Finding, ...]:
    return examine(looked_at(*ranks, sources={"train.py": SOURCE}), HANGS, PLUGINS.remedies, live=True).findings


def polling(bytes_moved: int) -> RankStacks:
    """Rank 1 waits for its loader, whose worker looks for a file every half second."""
    inside = frame("data.py:12 __getitem__")
    frames = (inside, torch_frame("fetch", FETCH), torch_frame("_worker_loop", WORKER))
    worker = process(*frames, pid=2001, worker=0, still=0.1, moved=True, lasting=inside, bytes_moved=bytes_moved)
    return rank(1, torch_frame("_next_data", LOADER), frame("train.py:1 step"), still=0.1, workers=(worker,))


def test_a_worker_that_polls_while_the_others_wait_for_long_is_named() -> None:
    finding = seen(in_collective(0, still=31), polling(bytes_moved=0))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD115", (1,), POSSIBLE)
    assert finding.title == (
        "waits for its DataLoader: worker 0 (pid 2001) has been in __getitem__ while the others wait for 31 s"
    )
    assert finding.place.short == "data.py:12"


@pytest.mark.parametrize(("waited", "bytes_moved"), [(31, 1 << 20), (12, 0)])
def test_a_worker_that_reads_or_has_only_begun_is_left_alone(waited: float, bytes_moved: int) -> None:
    recording = looked_at(in_collective(0, still=waited), polling(bytes_moved))

    assert list(examine(recording, HANGS, PLUGINS.remedies, live=True).findings) == []


def test_a_wrapper_of_the_probe_is_no_frame() -> None:
    ours = {"name": "call", "filename": "/x/distdoctor/probe/wrappers.py (like importlib._bootstrap)", "line": 9}
    users = {"name": "main", "filename": "/job/train.py", "line": 4}

    thread = thread_of({"frames": [ours, users], "os_thread_id": 1}, user_locals=False)

    assert [one.path for one in thread.frames] == ["/job/train.py"]


def test_the_file_that_a_stuck_worker_waits_for_is_named_with_what_to_do() -> None:
    asleep = process(
        frame("data.py:12 __getitem__"),
        torch_frame("fetch", FETCH),
        torch_frame("_worker_loop", WORKER),
        pid=2001,
        worker=0,
        waits_for=FileWait("open", "/data/labels", "FIFO"),
    )

    finding = seen(
        in_collective(0),
        rank(1, torch_frame("_next_data", LOADER), frame("train.py:30 main"), still=30.0, workers=(asleep,)),
    )

    assert (finding.code, finding.ranks) == ("DD115", (1,))
    assert finding.title.endswith("open() of the FIFO /data/labels waits for a process that opens its other end")
    assert "start what opens the other end of /data/labels" in finding.prescriptions[0].change


def test_how_long_a_rank_has_been_at_a_line_stands_before_what_else_it_does() -> None:
    finding = seen(in_collective(0), rank(1, frame("train.py:11 step"), still=30.0, held_gil=True))

    assert "for 30 s, and never releases the GIL" in finding.title


def test_a_loop_in_python_that_holds_the_gil_at_changing_lines_is_not_said_to_keep_it() -> None:
    loop = frame("train.py:11 count")
    waits = in_collective(0, still=60.0)

    finding = seen(waits, rank(1, loop, still=0.0, held_gil=True, moved=True, cpu_share=0.98, lasting=loop))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD116", (1,), POSSIBLE)
    assert "GIL" not in " ".join((finding.title, finding.why, *(place.role for place in finding.places)))
    assert finding.prescriptions[0].change == (
        "end the loop of count at train.py:11 earlier, or share its work among all ranks"
    )


@pytest.mark.parametrize(
    ("line", "keeps"), [("while True: n += 1", False), ("    n += 1", False), ("count(10**12)", True)]
)
def test_a_loop_on_one_line_is_not_said_to_keep_the_gil(line: str, keeps: bool) -> None:
    loop = frame("train.py:1 count")
    spins = rank(1, loop, still=0.0, held_gil=True, cpu_share=0.98, lasting=loop)
    recording = replace(looked_at(in_collective(0, still=60.0), spins), sources={"/job/train.py": line})

    (finding, *_) = examine(recording, HANGS, {}, live=True).findings

    assert (finding.code, "GIL" in f"{finding.title} {finding.why}") == ("DD116", keeps)
    assert finding.confidence == (LIKELY if keeps else POSSIBLE)


def test_where_a_check_of_hangs_fails_nobody_says_that_nothing_is_stuck() -> None:
    def raises(stall: Stall) -> Iterator[Finding]:
        raise KeyError("which")

    broken = check("DD996", "broken-check", severity=ERROR, family="hang")(raises)
    recording = looked_at(in_collective(0), rank(1, frame("train.py:11 step"), still=30.0))
    diagnosis = examine(recording, [broken], {}, live=True)

    assert answer(diagnosis, recording).startswith("could not look: DD996: the check failed: KeyError: 'which'; rank 0")
    assert _exit_code(LookedAt("train.py", (), 0), diagnosis, Settings()) == 5


def test_a_rank_that_stands_in_a_library_alone_is_told_the_line_of_the_library() -> None:
    held = (
        frame("/usr/lib/python3.11/multiprocessing/queues.py:90 put"),
        frame("/venv/lib/python3.11/site-packages/writer/file_writer.py:136 add_event"),
    )
    (finding,) = examine(looked_at(rank(0, *held, still=40.0), in_collective(1)), HANGS, live=True).findings

    assert finding.code == "DD116"
    assert finding.prescriptions[0].change == "bound the wait at file_writer.py:136, or do this on every rank"
