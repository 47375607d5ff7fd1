"""What the source around the lines of two stacks tells of ranks that wait for each other, and what several threads of one do."""

from __future__ import annotations

from dataclasses import replace

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Finding
from distdoctor.recording.stacks import RankStacks, ThreadStack
from distdoctor.testing.stacks import frame, gone, in_collective, looked_at, process, rank, torch_frame

HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]
SOURCE = """\
def leader_first(rank):
    if rank != 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()

def synchronise(metric):
    dist.barrier()

def report(rank, metric):
    if rank == 0:
        synchronise(metric)

def publish(tensors, owner):
    for name in set(tensors):
        dist.broadcast(tensors[name], src=owner[name])

def main(rank, metric):
    report(rank, metric)
    dist.all_reduce(x)
    synchronise(metric)

def settle(rank, edges):
    for edge in [rank, (rank - 1) % 3]:
        dist.all_reduce(x, group=edges[edge])

def average(group):
    dist.all_reduce(x, group=group)

def reduced(rank, totals):
    if rank == 1:
        return average(torch.cat([totals, extra]))
    return average(totals)
"""


def seen(*ranks: RankStacks, **more: object) -> Finding:
    recording = looked_at(*ranks, sources={"train.py": SOURCE}, **more)  # type: ignore[arg-type]
    (finding,) = examine(recording, HANGS, PLUGINS.remedies, live=True).findings
    return finding


def test_a_condition_around_the_call_that_led_there_decides_a_tie() -> None:
    """What both sides have in their stacks lies above it: `main` is entered by all."""
    reports = rank(
        0,
        torch_frame("barrier"),
        frame("train.py:9 synchronise"),
        frame("train.py:13 report"),
        frame("train.py:20 main"),
    )
    finding = seen(reports, rank(1, torch_frame("all_reduce"), frame("train.py:21 main")))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD112", (0,), LIKELY)
    assert finding.why == "train.py:13 is reached only under `rank == 0` (line 12), which depends on the rank"
    assert finding.prescriptions[0].change.startswith("call what train.py:13 calls on every rank")


def test_a_call_that_the_other_ranks_have_as_well_is_no_sign() -> None:
    """The leader goes first, and comes to its barrier after the work: who came with it into this function is not known."""
    leader = rank(0, torch_frame("barrier"), frame("train.py:6 leader_first"))
    finding = seen(leader, rank(1, torch_frame("all_reduce"), frame("train.py:21 main")))

    assert (finding.code, finding.ranks, finding.undecided) == ("DD101", (0, 1), True)


def test_a_branch_beside_one_that_calls_the_same_is_no_sign() -> None:
    """Rank 1 sends more than the others, and comes to the same call as they do."""
    more = rank(1, torch_frame("all_reduce"), frame("train.py:29 average"), frame("train.py:33 reduced"))
    finding = seen(rank(0, torch_frame("all_reduce"), frame("train.py:21 main")), more)

    assert (finding.code, finding.ranks, finding.undecided) == ("DD101", (0, 1), True)


def test_a_loop_over_a_set_explains_other_roots_in_one_line() -> None:
    ranks = [
        in_collective(one, "broadcast", "train.py:17 publish", arguments={"src": str(one % 2)}) for one in range(3)
    ]
    finding = seen(*ranks)

    assert (finding.code, finding.ranks) == ("DD107", (0, 1, 2))
    assert finding.prescriptions[0].change == "go through sorted(set(tensors)) at train.py:16"


def test_groups_that_each_rank_takes_in_an_order_of_its_own_are_possible_and_others_are_left_open() -> None:
    def in_group(site: str) -> list[RankStacks]:
        return [in_collective(one, site=site, arguments={"group": f"<ProcessGroup at {one}>"}) for one in range(3)]

    finding = seen(*in_group("train.py:26 settle"))
    assert (finding.code, finding.ranks, finding.confidence) == ("DD108", (0, 1, 2), POSSIBLE)
    assert finding.prescriptions[0].change == "use the groups in the same order on every rank (train.py:25)"
    assert seen(*in_group("train.py:29 average")).code == "DD122"


def test_two_threads_in_collectives_of_one_group_are_ordered_by_nothing() -> None:
    def both(number: int, group: str, call: str = "gather_object") -> RankStacks:
        waits = in_collective(number, site="train.py:21 main")
        assert waits.process is not None
        beside = (torch_frame(call, group=group), frame("train.py:9 synchronise"))
        threads = (*waits.process.threads, ThreadStack(7, beside, "writer"))
        return replace(waits, process=replace(waits.process, threads=threads))

    finding = seen(both(0, "None"), both(1, "None"))
    assert (finding.code, finding.ranks, finding.confidence) == ("DD107", (0, 1), LIKELY)
    assert finding.title.startswith("wait in gather_object in a thread and in all_reduce in the main one")

    finding = seen(both(0, "<ProcessGroup at 0x7f>"), both(1, "<ProcessGroup at 0x7e>"))
    assert (finding.code, finding.confidence) == ("DD107", POSSIBLE)

    assert seen(both(0, "None", "recv"), both(1, "None", "recv")).code == "DD122"  # a thread that serves


def test_sends_and_receives_that_wait_for_each_other_are_one_ring() -> None:
    first = in_collective(0, "send", "train.py:5 step", arguments={"dst": "2"})
    receives = [in_collective(one, "recv", "train.py:7 step", arguments={"src": str(one - 1)}) for one in (1, 2)]
    finding = seen(first, *receives)

    assert (finding.code, finding.ranks) == ("DD114", (0, 1, 2))
    assert finding.title == "wait for each other in a ring of 3 sends and receives"
    assert finding.evidence["cycle"] == [
        "rank 0 waits in send to rank 2 (train.py:5)",
        "rank 2 waits in recv from rank 1 (train.py:7)",
        "rank 1 waits in recv from rank 0 (train.py:7)",
    ]


def test_ranks_that_stand_at_one_line_of_their_own_are_told_once() -> None:
    own = [rank(one, frame("train.py:4 leader_first")) for one in (1, 2)]
    finding = seen(in_collective(0, site="train.py:21 main"), *own)

    assert (finding.code, finding.ranks) == ("DD116", (1, 2))
    assert finding.title.startswith("have been at `yield` for 20 s")


def test_a_rank_that_its_launcher_has_started_and_that_is_gone_will_not_come_to_init() -> None:
    def begins(number: int) -> RankStacks:
        return rank(number, torch_frame("init_process_group"), frame("train.py:20 main"), age_seconds=15.0)

    launcher = process(frame("run.py:1 main"), pid=900)
    finding = seen(begins(0), begins(1), gone(2), launcher=launcher)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD118", (2,), LIKELY)


def test_a_rank_that_a_waiting_one_is_starting_itself_is_not_looked_for_elsewhere() -> None:
    """Lightning's own launcher: rank 0 starts the others as its children, which import for as long as the machine needs."""

    def begins(*, moved: bool) -> RankStacks:
        child = process(frame("train.py:1 <module>"), pid=1500, still=0.0, moved=moved)
        init = torch_frame("init_process_group")
        return rank(0, init, frame("train.py:20 main"), children=(child,), still=0.0, age_seconds=90.0)

    def told(one: RankStacks) -> list[str]:
        recording = looked_at(one, sources={"train.py": SOURCE}, elsewhere=(1,))
        return [found.code for found in examine(recording, HANGS, PLUGINS.remedies, live=True).findings]

    assert told(begins(moved=True)) == []
    assert told(begins(moved=False)) == ["DD118"]


def test_a_start_that_all_ranks_are_in_for_longer_than_one_takes_is_told() -> None:
    def begins(number: int, age: float) -> RankStacks:
        return rank(number, torch_frame("init_process_group"), frame("train.py:20 main"), still=0.0, age_seconds=age)

    finding = seen(begins(0, 90.0), begins(1, 90.0))
    assert (finding.code, finding.ranks, finding.confidence) == ("DD122", (0, 1), POSSIBLE)
    assert not examine(looked_at(begins(0, 20.0), begins(1, 20.0)), HANGS, PLUGINS.remedies, live=True).findings


def test_ranks_that_all_look_for_the_store_wait_for_one_that_nobody_holds() -> None:
    def begins(number: int, age: float = 90.0) -> RankStacks:
        store = frame("/venv/torch/distributed/rendezvous.py:290 _create_c10d_store")
        init = torch_frame("init_process_group")
        return rank(number, store, init, frame("train.py:20 main"), still=0.0, age_seconds=age)

    finding = seen(begins(0), begins(1))
    assert (finding.code, finding.ranks, finding.confidence) == ("DD118", (0, 1), LIKELY)
    assert "leave MASTER_ADDR and MASTER_PORT" in finding.prescriptions[0].change
    assert not examine(looked_at(begins(0, 20.0), begins(1, 20.0)), HANGS, PLUGINS.remedies, live=True).findings
