"""Who printed a line is told by the prefixes of launchers, and by what they mean in that log."""

from __future__ import annotations

import time

import pytest
from test_job_log import PEER, verdicts, watchdog

from distdoctor.recording.job_log import parse_log


def late(rank: int, last: int, prefix: str = "", own: str | None = None) -> str:
    """What a rank prints that is asked for its flight recorder, and whose own calls have all completed."""
    own = f"[rank{rank}]:" if own is None else own
    return (
        f"{prefix}{own}[E1124 14:10:01.4 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump "
        f"signal due to a collective timeout from  rank 3 and we will try our best to dump the debug info. Last enqueued NCCL "
        f"work: {last}, last completed NCCL work: {last}.This is most likely caused by incorrect usages of collectives\n"
    )


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def of_two_nodes(prefix: str, *, of_torch: bool = True) -> str:
    """Sixteen ranks on two nodes, of which rank 11 did not come; `prefix` is formatted with node and local rank."""
    found = ""
    for rank in range(16):
        own = watchdog(rank, 4502) if rank != 11 else late(rank, 4501)
        own = own if of_torch else own.replace(f"[rank{rank}]:", "")
        found += prefixed(prefix.format(node=rank // 8, local=rank % 8), own)
    return found


@pytest.mark.parametrize(
    "prefix",
    [
        "[default{local}]:",  # torchrun --tee 3
        "{node}: [default{local}]:",  # of srun --label, torchrun on each node
        "worker-{node}: ",  # DeepSpeed's pdsh
        "[pod/train-worker-{node}/pytorch] 2025-11-24T14:00:03.123456789Z ",  # kubectl logs --prefix --timestamps
        "\x1b[36m(RayTrainWorker pid=58{node}{local}, ip=10.0.0.{node})\x1b[0m ",
        "[2025-05-10 00:18:21] (WorkerDict pid=1230, ip=train-1316-worker-{node}) ",
        "Nov 24 14:10:01 node{node} python[412{local}]: ",
        "worker-{node}  | ",  # docker compose
        " 99%|#########9| 1743/1752 [01:07<00:01,  2.75s/it]\r 99%|#########9| 1744/1752 [01:08<00:01,  2.76s/it]",
    ],
)
def test_of_two_nodes_in_one_log_every_rank_is_seen(prefix: str) -> None:
    assert verdicts(of_two_nodes(prefix)) == [("DD116", (11,))]


def test_local_ranks_of_two_nodes_are_told_apart_by_what_torch_prints_of_everybodys_group() -> None:
    """Torch before 2.2 has no prefix of its own."""
    assert verdicts(of_two_nodes("[default{local}]:", of_torch=False)) == [("DD116", (11,))]


ERROR = 'Traceback (most recent call last):\n  File "/w/train.py", line 44, in main\nKeyError: 5\n'


@pytest.mark.parametrize(
    ("before", "prefix", "rank"),
    [
        ("", "[default3]:", 3),
        (
            watchdog(8, 7).replace("[rank8]:", "[default0]:[rank8]:"),
            "[default3]:",
            11,
        ),  # a log of the second node alone
        (of_two_nodes("[default{local}]:"), "[default3]:", -1),  # rank 3, or rank 11
        (of_two_nodes("{node}: [default{local}]:"), "1: [default3]:", 11),
        (of_two_nodes("{node}: "), "1: ", -1),  # of the launcher on the second node
        ("13: [rank13]: step 3, last enqueued\n", "14: ", 14),
        ("", "[trainer3]:", 3),  # torchrun --role trainer
        ("", "rank9: ", 9),  # rich takes brackets for markup
        ("", "[pod/train-worker-1/pytorch] 2025-11-24T14:00:03.123456789Z ", -1),
        ("", "node7: ", -1),
    ],
)
def test_a_weak_prefix_names_a_rank_where_the_log_shows_what_it_means(before: str, prefix: str, rank: int) -> None:
    recording = parse_log(before + prefixed(prefix, ERROR))

    (clue,) = [clue for clue in recording.clues if clue.kind == "exception"]
    assert (clue.words, clue.rank) == ("KeyError: 5", rank)
    assert clue.site.line == 44


def test_a_count_that_torch_has_never_set_is_none() -> None:
    text = "".join(watchdog(rank, 1, group="PG 1") for rank in range(2)).replace(
        "completed work: 0", "completed work: 93459313471793"
    )
    numbers = {clue.numbers for clue in parse_log(text).clues if clue.kind == "work"}

    assert numbers == {(1, 3, -1)}
    assert verdicts(text) == [("DD122", (0, 1))]


def test_nobody_is_missing_where_ray_has_left_out_lines_that_resemble_each_other() -> None:
    """Sixteen ranks printed the timeout, Ray shows that of two."""
    seen = prefixed("(RayTrainWorker pid=5823, ip=10.0.0.1) ", watchdog(0, 17)).replace(
        "timing out.", "timing out. [repeated 14x across cluster]"
    )
    text = seen + prefixed("(RayTrainWorker pid=5824, ip=10.0.0.2) ", watchdog(2, 17) + PEER.replace("rank0", "rank1"))

    assert verdicts(text) == [("DD122", (0, 2))]


@pytest.mark.parametrize(
    "piece", ["[default1]:", "[pod/", "rank1: ", "a.1", "1: ", "(a pid=1, ", "task_memcg=/task_", "\r", "[rank1]:a "]
)
def test_a_line_full_of_prefixes_takes_no_time(piece: str) -> None:
    begun = time.perf_counter()
    parse_log("\n".join(["srun: error: Error Xid " + piece * 2000, piece * 2000 + "Error"] * 40))

    assert time.perf_counter() - begun < 5
