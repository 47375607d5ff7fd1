"""What schedulers, the kernel and drivers print of how a process ended, with the rank where the log shows it."""

from __future__ import annotations

import pytest
from test_job_log import HOST, PEER, table, told, watchdog

from distdoctor.diagnosis.finding import ERROR, LIKELY, NOTE, POSSIBLE, WARNING
from distdoctor.recording.job_log import parse_log

KERNEL = (
    "[Mon Nov 24 14:00:03 2025] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0-1,"
    "oom_memcg=/system.slice/slurmstepd.scope/job_88121,"
    "task_memcg=/system.slice/slurmstepd.scope/job_88121/step_0/user/task_21,task=python3,pid=61321,uid=20011\n"
    "[Mon Nov 24 14:00:03 2025] Memory cgroup out of memory: Killed process 61321 (python3) total-vm:412310232kB\n"
)
LABELLED = (
    "13: [rank13]:[E1124 14:00:03.6 ProcessGroupNCCL.cpp:2057] NCCL error: remote process exited, NCCL version 2.27.3\n"
)
OF_NODES = "1: [default5]:[rank13]: torch.distributed.DistBackendError: NCCL error: remote process exited\n"
SLURM = """\
slurmstepd: error: Detected 1 oom_kill event in StepId=88121.0. Some of the step tasks have been OOM Killed.
srun: error: node003: task 21: Out Of Memory
srun: Terminating StepId=88121.0
slurmstepd: error: *** STEP 88121.0 ON node001 CANCELLED AT 2025-11-24T14:00:08 ***
srun: error: node001: tasks 0-7: Terminated
srun: error: node003: tasks 16-20,22-23: Killed
"""


@pytest.mark.parametrize(
    ("text", "ranks", "confidence", "why"),
    [
        (KERNEL + LABELLED + SLURM, (21,), LIKELY, "the kernel says so, and Slurm: node003: task 21, Out Of Memory"),
        (SLURM, (21,), LIKELY, "Slurm says so (node003: task 21, Out Of Memory)"),
        (SLURM.replace("task 21:", "tasks 21-23:"), (21, 22, 23), POSSIBLE,
         "Slurm says so (node003: tasks 21-23, Out Of Memory)"),
        (OF_NODES + SLURM.replace("tasks 0-7", "task 0").replace("tasks 16-20,22-23", "task 1"), (), POSSIBLE,
         "Slurm says so (node003: task 21, Out Of Memory); which rank that was the log does not say"),
        ("      Reason:       OOMKilled\n      Exit Code:    137\n", (), POSSIBLE,
         "Kubernetes says so; which rank that was the log does not say"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n", (), POSSIBLE,
         "Ray says so; which rank that was the log does not say"),
    ],
)  # fmt: skip
def test_a_kill_for_memory_names_the_rank_where_slurms_tasks_are_ranks(
    text: str, ranks: tuple[int, ...], confidence: object, why: str
) -> None:
    (finding,) = told(text)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD110", ranks, confidence)
    assert finding.why.partition("; ")[2] == why


def test_who_was_ended_by_slurm_is_no_cause() -> None:
    ends = parse_log(SLURM).job.ends

    assert [rank for rank, end in ends.items() if not end.ended_by_launcher] == [21]
    assert len(ends) == 16


@pytest.mark.parametrize(
    ("text", "ranks", "confidence", "title"),
    [
        ("srun: error: n2: task 5: Segmentation fault (core dumped)\nsrun: Terminating StepId=9.0\n"
         "srun: error: n2: tasks 4,6-7: Killed\n", (5,), LIKELY,
         "ended badly: n2: task 5, Segmentation fault (core dumped)"),
        ("srun: error: n2: task 5: Exited with exit code 1\nsrun: error: n1: tasks 0-1: Exited with exit code 1\n", (5,),
         POSSIBLE, "ended badly: n2: task 5, Exited with exit code 1"),
        ("slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2025-11-24T14:00:08 DUE TO TIME LIMIT ***\n", (), POSSIBLE,
         "Slurm ended the job: step 9.0, time limit"),
        ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2025-11-24T14:00:08 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***\n",
         (), POSSIBLE, "Slurm ended the job: job 9, node failure"),
        ("[rank3]:[F1124 14:20:01.5 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 3] Terminating the process "
         "after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n", (3,), LIKELY,
         "crashed: torch ended it because of a ProcessGroupNCCL watchdog hang"),
    ],
)  # fmt: skip
def test_the_words_of_whoever_ended_it_are_told(
    text: str, ranks: tuple[int, ...], confidence: object, title: str
) -> None:
    (finding,) = told(text)

    assert (finding.code, finding.ranks, finding.confidence, finding.title) == ("DD110", ranks, confidence, title)


XID = "[ 8123.4] NVRM: Xid (PCI:0000:c8:00): {code}, pid=4002, name=python3, {words}\n"


@pytest.mark.parametrize(("end", "ranks"), [("", ()), (table((2, -6, "10:00:07")), (2,))])
def test_a_gpu_that_the_driver_gave_up_is_told_and_not_the_timeouts_that_follow(
    end: str, ranks: tuple[int, ...]
) -> None:
    timeouts = "".join(watchdog(rank, 30) for rank in range(4))

    (finding,) = told(XID.format(code=79, words="GPU has fallen off the bus.") + timeouts + end)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD122", ranks, LIKELY)
    assert finding.title == "NVIDIA's driver reported Xid 79 on PCI:0000:c8:00: GPU has fallen off the bus."


def test_an_xid_that_a_program_may_cause_accuses_no_device() -> None:
    timeouts = "".join(watchdog(rank, 30) for rank in range(4))

    (finding,) = told(XID.format(code=31, words="Ch 00000008, intr 00000000. MMU Fault") + timeouts)

    assert finding.title == "timed out in ALLREDUCE #30 of default_pg"
    assert finding.why.partition("; ")[2] == (
        "all 4 ranks that the log names had called it, and none completed it: which of them is at fault the log does not show; "
        "it is the network, a device, or a rank that is not in this log"
    )


def test_a_warning_that_mentions_an_xid_or_a_kill_elsewhere_is_none() -> None:
    text = HOST + "graph.cc:11 NCCL INFO Xid of the last job was 79, its pod was OOMKilled\n"

    assert not parse_log(text).clues


STEPS = "".join(f"step {number} | loss 2.9000 | 419.8 ms/step\n" for number in range(300))
CAUGHT = (
    'Traceback (most recent call last):\n  File "/w/log.py", line 7, in push\nrequests.ReadTimeout: read timed out\n'
)


def test_an_exception_after_which_the_job_goes_on_is_possible() -> None:
    (finding,) = told(CAUGHT + STEPS)
    (other,) = told(CAUGHT + STEPS.replace("step", "row").replace("loss", "x"))

    assert (finding.code, finding.confidence, finding.severity) == ("DD110", POSSIBLE, NOTE)
    assert finding.why == (
        "line 3 of the log; caught, or mended by a start anew: the training goes on after it, and the log tells of no end"
    )
    assert (other.confidence, other.severity) == (POSSIBLE, ERROR)
    assert other.why == "line 3 of the log; the log goes on for 300 lines and tells of no end: it may have been caught"
    assert [one.confidence for one in told(STEPS + CAUGHT)] == [LIKELY]
    assert [one.confidence for one in told(CAUGHT + STEPS + table((2, 1, "10:00:07")))] == [LIKELY]


def test_a_connection_that_was_made_again_is_nobody_who_left() -> None:
    retry = "INFO retry after ConnectionResetError(104, 'Connection reset by peer')\n"

    assert not told(retry + STEPS)
    assert [finding.title for finding in told(STEPS + retry)] == [
        "a peer has left, or did not come, while others still waited"
    ]


def test_a_warning_that_is_printed_is_no_failure() -> None:
    raised = 'Traceback (most recent call last):\n  File "/w/t.py", line 7, in f\nUserWarning: no scheduler\n'

    assert not told("UserWarning: no scheduler\n")
    assert [(finding.code, finding.place.line) for finding in told(raised)] == [("DD110", 7)]


@pytest.mark.parametrize(
    "words",
    ["misc/ibvwrap.cc:297 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1\n",
     "NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4711> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"],
)  # fmt: skip
def test_what_nccl_said_of_its_network_comes_before_the_timeouts_that_follow(words: str) -> None:
    timeouts = "".join(watchdog(rank, 30) for rank in range(4))
    (finding,) = told(HOST + words + timeouts)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD122", (), POSSIBLE)
    assert finding.title.startswith("NCCL warned: ")
    assert finding.why == "line 1 of the log; 4 ranks timed out in ALLREDUCE #30 of default_pg after it"


def test_a_line_that_open_mpi_breaks_is_read_whole() -> None:
    text = "prterun noticed that process rank 6 with PID 4711 on node n2 exited on\nsignal 9 (Killed).\n"

    assert [finding.title for finding in told(text)] == ["a process ended badly: process rank 6, signal 9 (Killed)"]


STORE = (
    "[rank{0}]:[W901 21:19:08.277343715 ProcessGroupNCCL.cpp:1783] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Failed to check the "
    '"should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n'
    "[rank{0}]:[W901 21:19:09.254317555 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=51, addr=[localhost]:40714, "
    "remote=[localhost]:29500): Broken pipe\n"
)


def test_a_store_that_is_shut_down_first_is_a_warning_and_accuses_nobody() -> None:
    text = STORE.format(1) + STORE.format(3)
    (finding,) = told(text)

    assert (finding.code, finding.ranks, finding.severity, finding.confidence) == ("DD110", (), WARNING, POSSIBLE)
    assert finding.title == "the job's store was shut down while ranks 1,3 still ran"
    assert [one.title for one in told(PEER + text)] == [
        "a peer has left, or did not come, while ranks 0-1,3 still waited"
    ]


def test_of_two_that_ended_in_one_second_the_one_that_lost_a_peer_came_later() -> None:
    ended = table((1, -9, "10:00:07"), (0, 1, "10:00:07"))
    (finding,) = told(PEER + ended)
    (undecided,) = told(PEER.replace("rank0", "rank3") + ended)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD110", (1,), LIKELY)
    assert "rank 0 ended in the same second and had lost a peer" in finding.why
    assert (undecided.ranks, undecided.confidence) == ((0, 1), POSSIBLE)


def test_a_broken_gpu_is_not_mended_in_the_line_that_noticed_it() -> None:
    raised = (
        '[rank12]:   File "/job/train.py", line 190, in main\n[rank12]: RuntimeError: CUDA error: uncorrectable ECC error '
        "encountered\n"
    )
    (finding,) = told(raised)

    assert (finding.code, finding.ranks) == ("DD110", (12,))
    assert "drain the host of rank 12" in finding.prescriptions[0].change
    assert "fix the RuntimeError" not in finding.prescriptions[0].change


def test_a_traceback_of_any_program_is_no_rank() -> None:
    text = '  File "/srv/app/api.py", line 10, in handler\n    raise TimeoutError("upstream")\nTimeoutError: upstream\n'
    (finding,) = told(text)
    (of_a_rank,) = told("".join(f"[rank3]: {line}\n" for line in text.splitlines()))

    assert (finding.ranks, finding.confidence) == ((), POSSIBLE)
    assert "a rank" not in finding.title
    assert "nothing in the log shows that it is of a distributed job" in finding.why
    assert (of_a_rank.ranks, of_a_rank.confidence) == ((3,), LIKELY)


def struck(rank: int, number: int, operation: str, group: str = "PG ID 0 PG GUID 0(default_pg)") -> str:
    """What a watchdog prints when its thread ends, which names its group."""
    call = f"WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=1, NumelOut=2, Timeout(ms)=600000)"
    return (
        f"[rank{rank}]:[E606 09:09:08.1 ProcessGroupNCCL.cpp:2395] [{group} Rank {rank}] Process group watchdog thread "
        f"terminated with exception: [Rank {rank}] Watchdog caught collective operation timeout: {call} ran for 600004 "
        "milliseconds\n"
    )


def test_what_a_collective_raises_behind_its_own_timeout_is_not_the_cause() -> None:
    emptied = "RuntimeError: DDP expects same model across all ranks, but Rank {0} has 51 params, while rank 0 has inconsistent 0"
    text = "".join(struck(rank, 1, "ALLGATHER") for rank in range(3))
    text += "".join(f"[rank{rank}]: {emptied.format(rank)} params.\n" for rank in range(3))

    (finding,) = told(text)

    assert (finding.code, finding.ranks) == ("DD122", (0, 1, 2))


def test_an_error_of_the_programs_own_behind_a_timeout_is_still_told() -> None:
    (finding,) = told(struck(0, 7, "ALLREDUCE") + "[rank1]: ValueError: no such shard\n")

    assert (finding.code, finding.ranks) == ("DD110", (1,))


def test_the_group_of_a_timeout_is_read_from_the_line_that_names_it() -> None:
    (finding,) = told(struck(1, 2635, "ALLREDUCE") + struck(0, 2667, "_REDUCE_SCATTER_BASE"))

    assert (finding.code, finding.ranks) == ("DD101", (1,))
    assert "left out 32 calls" in finding.title


def test_ranks_that_were_asked_to_dump_say_whose_watchdog_has_struck() -> None:
    asked = (
        "[rank{0}]:[E703 15:37:17.1 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal "
        "due to a collective timeout from  rank 3 and we will try our best to dump the debug info. Last enqueued NCCL work: "
        "56118, last completed NCCL work: 56118.\n"
    )
    (finding,) = told("".join(asked.format(rank) for rank in (0, 1, 2)) + table((1, 1, "15:37:21")))

    assert (finding.code, finding.ranks) == ("DD122", (3,))  # not who exited first


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("IndexError: list index out of range\n" + table((4, 1, "10:00:07"), (0, -15, "10:00:08")), (4,)),
        ("IndexError: list index out of range\n" + table((4, 1, "10:00:07"), (0, 1, "10:00:08")), ()),
        ("AssertionError: Rank 13: found NaN in local grad norm\n", (13,)),
        ("what():  CUDA error: misaligned address\n" + table((6, -6, "10:00:07")), (6,)),
    ],
)
def test_an_error_without_a_prefix_is_of_the_only_rank_that_failed_or_that_it_names(
    text: str, ranks: tuple[int, ...]
) -> None:
    (finding,) = told(text)

    assert (finding.code, finding.ranks) == ("DD110", ranks)


def test_a_worker_that_was_killed_while_the_kernel_freed_memory_was_killed_for_that() -> None:
    killed = "RuntimeError: DataLoader worker (pid 98) is killed by signal: Killed.\n"
    (finding,) = told(killed + "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=3.batch.\n")

    assert finding.title == "a DataLoader worker was killed for lack of memory"


def test_what_nccl_gives_as_its_last_error_is_told_with_what_to_do() -> None:
    nccl = "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1251, internal error\n"
    words = "ncclInternalError: Internal check failed.\nLast error:\nBootstrap : no socket interface found\n"
    (finding,) = told(nccl + words)

    assert "no socket interface found" in finding.title
    assert "NCCL_SOCKET_IFNAME" in finding.prescriptions[0].change


def test_a_device_number_that_does_not_exist_is_no_device_that_ranks_share() -> None:
    (finding,) = told(
        "gpu2:704798:704908 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'\n"
    )

    assert (finding.code, "share" in finding.title) == ("DD601", False)
