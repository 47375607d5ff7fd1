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
