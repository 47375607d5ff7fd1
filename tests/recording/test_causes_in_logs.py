"""What logs tell of the machine, the launcher and the scheduler: shared memory, disks, adapters, nodes, limits, and of noise."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_job_log import table, told
from test_logs_of_ranks import in_folder, lost, raised, steps

from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE

NCCL_FAILED = "torch.distributed.DistBackendError: NCCL error in: ../c10d/NCCLUtils.hpp:317, unhandled system error"
SYSTEM = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
SEGMENT = "Error while creating shared memory segment /dev/shm/nccl-nPQabJ (size 33030528)"
WARNED = "node-1:{}:9{} [2] transport/net_ib.cc:96 NCCL WARN NET/IB : {}\n"
PORT_ERROR = WARNED.format(7, 1, "mlx5_2:1 Got async event : port error")
COMPLETION = WARNED.format(7, 2, "Got completion from peer 10.21.0.121<48812> with status=12 opcode=0 len=0")
ASYNC = (
    "[rank{}]:[E219 04:19:07.16 ProcessGroupNCCL.cpp:552] [Rank {}] Collective WorkNCCL(SeqNum=61, OpType=ALLREDUCE, NumelIn=8, "
    "NumelOut=8, Timeout(ms)=1800000) raised the following async exception: NCCL error: remote process exited or there was a "
    "network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error\n"
)


def test_a_segment_that_nccl_could_not_make_is_full_shared_memory() -> None:
    own = raised(1, NCCL_FAILED, inner="/site-packages/torch/distributed/distributed_c10d.py")
    own += f"[rank1]: {SYSTEM}\n[rank1]: Last error:\n[rank1]: {SEGMENT}\n"
    (finding,) = told(own + table((1, 1, "10:00:07"), (3, 1, "10:00:07")))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD606", (1,), LIKELY)


def test_an_error_of_nccl_that_names_nothing_of_its_own_host_stays_that_of_a_lost_peer() -> None:
    own = raised(1, NCCL_FAILED, inner="/site-packages/torch/distributed/distributed_c10d.py")
    found = told(own + f"[rank1]: {SYSTEM}\n[rank1]: Last error:\n[rank1]: socketStartConnect: Connect failed\n")

    assert [one.code for one in found if one.code == "DD606"] == []
    assert all(one.confidence is POSSIBLE for one in found)


def test_the_adapter_that_reported_an_error_before_nccl_lost_a_peer_is_named_with_its_host(tmp_path: Path) -> None:
    logs = {"node0.log": COMPLETION + ASYNC.format(2, 2), "node1.log": PORT_ERROR + COMPLETION + ASYNC.format(6, 6)}
    logs = {name: text + table((int(name[4]) * 4 + 2, -6, "04:19:15")) for name, text in logs.items()}
    (finding,) = in_folder(tmp_path, logs)

    assert (finding.code, finding.confidence) == ("DD122", LIKELY)
    assert "mlx5_2:1 on host node-1 reported: port error" in finding.title
    assert finding.why.startswith("line 1 of node1.log")


def test_what_nccl_warns_of_in_a_log_without_any_error_is_a_note() -> None:
    warning = "p4:31:41 [0] graph/xml.cc:338 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:00\n"
    (finding,) = told(warning + steps(2, 2))
    assert (finding.code, finding.severity) == ("DD122", NOTE)

    (finding,) = told(warning + table((1, -6, "10:00:07")))
    assert finding.severity is not NOTE


def test_torchrun_that_waited_in_vain_for_other_nodes_is_told() -> None:
    (finding,) = told(
        "Traceback (most recent call last):\n"
        '  File "/site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py", line 680, in run\n'
        "    raise RendezvousTimeoutError\ntorch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"
    )

    assert (finding.code, finding.ranks, finding.confidence) == ("DD118", (), LIKELY)
    assert "--rdzv-endpoint" in finding.prescriptions[0].change


def test_an_error_without_words_is_read_below_a_traceback_only() -> None:
    (finding,) = told(raised(1, "AssertionError") + lost(0))
    assert (finding.code, finding.ranks, finding.place.line) == ("DD110", (1,), 17)

    assert [one.ranks for one in told("[rank1]: AssertionError\n" + lost(0))] == [()]


def test_a_checkpoint_that_could_not_be_written_whole_leads_to_the_disk() -> None:
    (finding,) = told(raised(0, "RuntimeError: basic_ios::clear: iostream error") + lost(1))

    assert finding.ranks == (0,)
    assert "df and quota" in finding.prescriptions[0].change


@pytest.mark.parametrize(("why", "is_note"), [("TIME LIMIT", True), ("PREEMPTION", True), ("NODE FAILURE", False)])
def test_a_limit_of_the_schedulers_is_nothing_that_failed(why: str, is_note: bool) -> None:
    (finding,) = told(
        steps(2, 3) + f"slurmstepd: error: *** STEP 22.0 ON cn041 CANCELLED AT 2025-05-10 DUE TO {why} ***\n"
    )

    assert (finding.code, finding.severity is NOTE) == ("DD110", is_note)


def test_a_store_that_went_with_a_rank_0_that_had_finished_is_a_note() -> None:
    gone = (
        '[rank1]:[W703 21:50:14.51 ProcessGroupNCCL.cpp:1659] [PG ID 0 PG GUID 0(default_pg) Rank 1] Failed to check the "should '
        'dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n'
    )
    finished = (
        "[rank0]:[W703 21:50:12.56 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called before "
        "program exit, which can leak resources.\n"
    )
    assert [one.severity is NOTE for one in told(finished + gone)] == [True]
    assert [one.severity is NOTE for one in told("[rank0]: step 3 loss 2.0\n" + gone)] == [False]


DESCRIBED = """Name:  ctc-worker-2
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Environment:
      WORLD_SIZE:        4
      RANK:              3
"""


def test_the_rank_of_a_pod_that_was_killed_for_memory_is_that_of_its_environment_and_not_of_its_name(
    tmp_path: Path,
) -> None:
    logs = {"logs/ctc-master-0.log": lost(0), "logs/ctc-worker-1.log": lost(2), "describe_ctc-worker-2.txt": DESCRIBED}
    (finding,) = in_folder(tmp_path, logs)

    assert (finding.code, finding.ranks) == ("DD110", (3,))


def test_the_number_of_a_worker_beside_a_master_is_no_rank(tmp_path: Path) -> None:
    error = raised(0, "KeyError: 'a'").replace("[rank0]: ", "")
    (alone,) = in_folder(tmp_path / "a", {"job-worker-1.log": error, "job-worker-0.log": steps(1, 3)})
    (beside,) = in_folder(tmp_path / "b", {"job-worker-1.log": error, "job-master-0.log": steps(1, 3)})

    assert (alone.ranks, beside.ranks) == ((1,), ())


OOM = (
    "[rank{0}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU {0} has a total capacity of 39.49 "
    "GiB of which 119.38 MiB is free. Including non-PyTorch memory, this process has {1} GiB memory in use. Of the allocated "
    "memory 7.96 GiB is allocated by PyTorch, and 7.73 MiB is reserved by PyTorch but unallocated.\n"
)
OF_NPU = (
    "[rank{0}]: RuntimeError: NPU out of memory. Tried to allocate {1} (NPU {0}; 60.96 GiB total capacity; 46.99 GiB already "
    "allocated; 46.99 GiB current active; {2} free; 48.12 GiB reserved in total by PyTorch)\n"
)


def test_ranks_that_failed_in_the_same_words_but_for_the_numbers_failed_together() -> None:
    (finding,) = told(OF_NPU.format(3, "1.66 GiB", "1.28 GiB") + OF_NPU.format(1, "728.00 MiB", "466.16 MiB"))

    assert (finding.code, finding.ranks) == ("DD408", (1, 3))
    assert finding.title == "could not allocate 1.66 GiB of device memory"


@pytest.mark.parametrize(("used", "others"), [("8.38", True), ("39.30", False)])
def test_a_device_that_is_full_of_what_others_hold_is_no_matter_of_the_batch(used: str, others: bool) -> None:
    (finding,) = told(OOM.format(0, used))

    assert ("other processes hold 31 GiB" in finding.title) == others
    assert ("nvidia-smi" in finding.prescriptions[0].change) == others


def test_a_segment_that_nccl_only_warned_of_is_full_shared_memory() -> None:
    full = "{0}:8642:87 [{1}] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    (finding,) = told(
        full.format("node", 0) + full.format("node", 1) + "RuntimeError: NCCL error: unhandled system error\n"
    )

    assert (finding.code, finding.confidence) == ("DD606", LIKELY)


ASSERTED = (
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1255: block: [0,0,0], thread: [{},0,0] Assertion `a < b` failed.\n"
)
ILLEGAL = "Training error: CUDA error: an illegal memory access was encountered\n"


@pytest.mark.parametrize(
    ("text", "words", "cure"),
    [
        (
            ASSERTED.format(0) + ASSERTED.format(1),
            "Assertion `a < b` failed at Indexing.cu:1255",
            "an index lies outside",
        ),
        (
            ASSERTED.format(0) + "RuntimeError: CUDA error: device-side assert triggered\n",
            "device-side assert triggered (CUDA: Assertion `a < b` failed at Indexing.cu:1255)",
            "an index lies outside",
        ),
        (ILLEGAL + "RuntimeError: Training failed with exit code 1\n", "illegal memory access", "compute-sanitizer"),
        (ILLEGAL + "ValueError: no such key\n", "ValueError: no such key", "fix the ValueError"),
        ("RuntimeError: Training failed with exit code 1\n", "exit code 1", "fix the RuntimeError"),
        ("RuntimeError: normal expects all elements of std >= 0.0\n", "std >= 0.0", "NaN or infinite"),
        (
            "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for head.weight: copying a param\n",
            "size mismatch for head.weight",
            "a model of other sizes",
        ),
        ("RuntimeError: Expected to mark a variable ready only once.\n", "ready only once", "use_reentrant=False"),
    ],
)
def test_what_a_device_printed_is_told_where_no_error_says_more_and_words_that_say_what_mends_them_do(
    text: str, words: str, cure: str
) -> None:
    (finding,) = told(steps(2, 2) + text)

    assert finding.code == "DD110"
    assert words in finding.title
    assert cure in finding.prescriptions[0].change


def test_a_gpu_that_hung_is_told_before_the_timeouts_that_follow() -> None:
    hung = "HW Exception by GPU node-9 (Agent handle: 0x64ff272d8ab0) reason :GPU Hang\n"
    late = (
        "[rank{0}]:[E1109 16:13:20.2 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600046 milliseconds before "
        "timing out.\n"
    )
    finding = told(hung + late.format(1) + late.format(2))[0]

    assert finding.title == "ROCm's runtime reported a hardware exception on GPU node-9: GPU Hang"


GONE = (
    "[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
)
COMPLETION = "NET/IB : Got completion from peer 10.5.0.34<33956> with error 5, opcode 0, len 1, vendor err 244 (Recv)\n"
REFUSED = "[rank1]: socketPollConnect: connect returned Connection refused, exceeded error retry count (35)\n"


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (COMPLETION, "NCCL's own network failed on rank 1: Got completion from peer 10.5.0.34<33956> with error 5"),
        (
            REFUSED,
            "NCCL's own network failed on rank 1: connect returned Connection refused, exceeded error retry count",
        ),
    ],
)
def test_what_nccls_own_network_met_says_more_than_that_a_peer_is_gone(last: str, words: str) -> None:
    finding = told(f"{GONE}[rank1]: Last error:\n{last}srun: error: g15: task 1: Exited with exit code 1\n")[0]

    assert (finding.code, finding.title, finding.confidence) == ("DD122", words, POSSIBLE)


def test_a_peer_that_was_killed_says_more_than_the_network_that_missed_it() -> None:
    killed = "traceback : Signal 9 (SIGKILL) received by PID 4002\n"
    table = f"  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 4002)\n  error_file: <N/A>\n  {killed}"
    finding = told(f"{GONE}[rank1]: Last error:\n{COMPLETION}Root Cause (first observed failure):\n{table}")[0]

    assert (finding.code, finding.ranks) == ("DD110", (3,))


LOOPBACK = (
    "[rank9]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. Using the loopback address "
    "as fallback.\n"
)


def test_a_loopback_address_in_the_log_of_a_job_that_trains_is_nothing_to_tell() -> None:
    assert told(LOOPBACK + steps(2, 2)) == []


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "torch.distributed.DistStoreError: wait timeout after 900000ms, keys:\n"
            "/none/torchelastic/role_info/0, /none/torchelastic/role_info/1\n",
            "DD118",
            "agents 0-1 did not write",
        ),
        (
            "E0319 23:40:35 torch/distributed/elastic/agent/server/api.py:951] Error waiting on exit barrier. Elapsed: 300.1 s\n",
            "DD110",
            "waited 300 s at its end for another host",
        ),
        (
            LOOPBACK + "[rank8]:[E ProcessGroupGloo.cpp:144] Gloo connectFullMesh failed with [pair.cc:144] no error\n",
            "DD118",
            "took the loopback one",
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 121 seconds waiting for clients. 1/2 clients joined.\n"
            "[E socket.cpp:1011] The client socket has timed out after 120000ms while trying to connect to (head, 29500).\n",
            "DD118",
            "only 1 of 2 ranks came to the store: another got no answer from it at head, 29500",
        ),
    ],
)
def test_what_agents_and_stores_say_of_hosts_that_do_not_meet_is_told(text: str, code: str, words: str) -> None:
    (finding,) = told(text)

    assert finding.code == code
    assert words in finding.title


def test_ranks_whose_error_shows_where_they_waited_are_told_with_that_line() -> None:
    late = (
        "[rank{0}]:[E810 03:04:11.0 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=78, OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600096 milliseconds before "
        "timing out.\n"
        "[rank{0}]:[E810 03:04:11.0 ProcessGroupNCCL.cpp:2241] [PG ID 0 PG GUID 0(default_pg) Rank {0}]  failure detected by "
        "watchdog at work sequence id: 78 PG status: last enqueued work: 79, last completed work: 77\n"
    )
    lost_it = (
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/data/job/pipeline.py", line 2961, in gathered\n'
        '[rank0]:   File "/site-packages/torch/distributed/distributed_c10d.py", line 3949, in all_gather\n'
        "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.168.7.7]:57000\n"
    )
    (finding,) = told(lost_it + late.format(1) + late.format(2) + late.format(3))

    assert (finding.code, finding.ranks, finding.place.line) == ("DD116", (0,), 2961)


def test_stacks_whose_first_lines_were_left_out_are_processes_of_their_main_threads() -> None:
    stack = 'Thread {} (idle): "MainThread"\n    {}\n    main (train.py:9)\n'
    waits = "all_reduce (torch/distributed/distributed_c10d.py:2806)\n    step (train.py:7)"
    text = "it hangs like that\n" + stack.format(688514, "load (train.py:3)") + "\n" + stack.format(688515, waits)

    assert [(one.code, one.ranks, one.place.line) for one in told(text)] == [("DD116", (0,), 3)]


@pytest.mark.parametrize(
    ("why", "cure"),
    [("TIME LIMIT", "ask for more time"), ("NODE FAILURE", "slurmctld's log"), ("PREEMPTION", "--requeue")],
)
def test_what_slurm_ended_a_job_for_says_what_is_to_be_done(why: str, cure: str) -> None:
    (finding,) = told(
        f"slurmstepd: error: *** STEP 557341.0 ON c4-n12 CANCELLED AT 2025-05-04T10:00:00 DUE TO {why} ***\n"
    )

    assert cure in finding.prescriptions[0].change


def test_of_a_log_of_vllm_the_error_of_the_worker_is_the_first() -> None:
    prefix = "(Worker pid=428) ERROR 09-01 07:40:16 [multiproc_executor.py:901] "
    (finding,) = told(
        f'{prefix}  File "/site-packages/vllm/v1/worker/utils.py", line 435, in request_memory\n'
        f"{prefix}ValueError: Free memory on device cuda:0 (110.9/140.55 GiB) on startup is less than desired GPU memory "
        "utilization (0.8, 112.44 GiB).\n"
        "(EngineCore pid=321) ERROR 09-01 07:40:25 [core.py:1330] EngineCore failed to start.\n"
    )

    assert "ValueError: Free memory on device" in finding.title
    assert "somebody else holds memory" in finding.prescriptions[0].change


def test_what_nccl_warned_of_before_a_crash_is_told_with_it() -> None:
    ring = "node:69965:69965 [1] graph/rings.cc:38 NCCL WARN Error : ring 1 does not loop back to start (3 != 1)\n"
    ended = " failed (exitcode: -11) local_rank: 2 (pid: 69966) of binary: /opt/conda/bin/python\n"
    (finding,) = told(ring + ended)

    assert finding.title == "a process ended badly: exitcode: -11, local_rank: 2"
    assert finding.why.endswith("NCCL had warned: Error : ring 1 does not loop back to start (3 != 1)")
    assert not any("had warned" in one.why for one in told(ended + ring))
