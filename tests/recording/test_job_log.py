"""A plain log is read for the few lines that name a rank or a size, and for nothing else."""

from __future__ import annotations

import bz2
import gzip
import lzma
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import ERROR, POSSIBLE, WARNING, Finding
from distdoctor.errors import NothingToInspect, UnreadableRecording
from distdoctor.recording.clue import ClueKind
from distdoctor.recording.job_log import parse_log
from distdoctor.recording.open import read_any

PREAMBLE = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 31, in main
[rank1]:     step(x)
[rank1]:   File "/job/train.py", line 12, in step
[rank1]:     dist.all_reduce(x)
[rank1]:   File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4181, in all_reduce
[rank1]:     work.wait()
[rank1]: RuntimeError: [enforce fail at ../third_party/gloo/pair.cc:446] op.preamble.length <= op.nbytes. 400 vs 200
"""
STORE = """\
[rank0]: torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/3
[rank1]: torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/3
"""
PEER = "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711\n"
TORCHRUN = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_10:00:00
  host      : node0
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
"""


CHECKS = list(PLUGINS.checks.values())


def told(text: str) -> list[Finding]:
    found = PLUGINS
    return list(examine(parse_log(text), CHECKS, found.remedies).findings)


def test_gloos_preamble_gives_sizes_and_the_line_of_whoever_received() -> None:
    (finding,) = told(PREAMBLE)

    assert (finding.code, finding.ranks, finding.place.line, finding.place.function) == ("DD103", (1,), 12, "step")
    assert finding.evidence["bytes came"] == 400
    assert finding.evidence["bytes expected"] == 200


def test_a_store_key_ends_in_the_rank_that_never_came() -> None:
    (finding,) = told(STORE)

    assert (finding.code, finding.ranks) == ("DD118", (3,))


def test_a_lost_peer_accuses_nobody_who_printed_it() -> None:
    (finding,) = told(PEER)

    assert finding.code == "DD110"
    assert finding.ranks == ()
    assert finding.evidence["innocent ranks"] == [0]


def test_an_exception_of_the_program_comes_before_what_follows_from_it() -> None:
    own = '[rank2]:   File "/job/data.py", line 7, in read\n[rank2]: ValueError: bad sample 17\n'

    (finding,) = told(PEER + own + STORE)

    assert (finding.code, finding.ranks, finding.place.line) == ("DD110", (2,), 7)
    assert finding.title == "failed with ValueError: bad sample 17"


def test_torchruns_table_tells_how_ranks_ended() -> None:
    recording = parse_log(TORCHRUN)

    assert recording.job.ends[2].signal == 9
    assert [(f.code, f.ranks) for f in told(TORCHRUN)] == [("DD110", (2,))]


def test_joined_clients_are_counted() -> None:
    (finding,) = told(
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.\n"
    )

    assert (finding.code, finding.title) == ("DD118", "only 1 of 2 ranks came to the store")


@pytest.mark.parametrize("line", ["[rank3]: x", "[rank 3] x", "[default3]:x", "3: x", "[1,3]<stderr>:x"])
def test_the_prefixes_of_launchers_name_the_rank(line: str) -> None:
    (clue,) = parse_log(line.replace("x", "ValueError: no")).clues

    assert (clue.rank, clue.kind) == (3, ClueKind.EXCEPTION)


def test_the_log_of_a_healthy_job_is_nothing_to_inspect(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("epoch 1: loss 0.31\n2026-11-21 10:00:00 INFO saved\n")

    with pytest.raises(NothingToInspect, match="tells of no error, no timeout and no lost rank"):
        read_any(log)


def test_a_folder_with_one_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(STORE)

    assert read_any(tmp_path).clues[0].numbers == (3,)


def watchdog(rank: int, number: int, operation: str = "ALLREDUCE", size: int = 64, group: str = "PG ID 0 PG GUID 0(default_pg)",
             enqueued: int = 0, inner: int | None = None) -> str:  # fmt: skip
    """What torch 2.6 prints on a rank whose call has timed out."""
    head, inner = f"[rank{rank}]:[E1206 18:44:12.7 ProcessGroupNCCL.cpp:632]", rank if inner is None else inner
    return (
        f"{head} [Rank {inner}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={operation}, "
        f"NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
        f"{head} [{group} Rank {inner}]  failure detected by watchdog at work sequence id: {number} PG status: last enqueued "
        f"work: {enqueued or number + 2}, last completed work: {number - 1}\n"
    )


def verdicts(text: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.code, finding.ranks) for finding in told(text)]


def test_a_rank_that_has_enqueued_less_than_the_others_wait_for_is_named() -> None:
    signal = (
        "[rank2]:[E1206 18:44:13 ProcessGroupNCCL.cpp:1664] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to "
        "a collective timeout from rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 807, last "
        "completed NCCL work: 807.\n"
    )
    assert verdicts("".join(watchdog(rank, 808) for rank in (0, 1, 3)) + signal) == [("DD116", (2,))]


def test_other_sizes_at_one_number_are_a_mismatch_of_shapes() -> None:
    text = "".join(watchdog(rank, 808, size=72 if rank == 3 else 64) for rank in range(4))

    assert verdicts(text) == [("DD103", (3,))]
    assert told(text)[0].title == (
        "has another size at #808 of default_pg: ranks 0-2: 64 elements; rank 3: 72 elements"
    )


def test_other_operations_at_one_number_are_a_mismatch_of_operations() -> None:
    text = "".join(watchdog(rank, 808, "BROADCAST" if rank == 1 else "ALLREDUCE") for rank in range(4))

    assert verdicts(text) == [("DD102", (1,))]


def test_uneven_all_to_all_is_no_mismatch() -> None:
    text = "".join(watchdog(rank, 5, "ALLTOALL_BASE", size=rank) for rank in range(4))

    assert verdicts(text) == [("DD122", (0, 1, 2, 3))]


def test_a_rank_several_numbers_behind_has_left_out_calls() -> None:
    text = "".join(watchdog(rank, 5 if rank == 2 else 8, enqueued=5 if rank == 2 else 10) for rank in range(4))

    assert verdicts(text) == [("DD101", (2,))]
    assert "left out 3 calls" in told(text)[0].title


def test_a_rank_whose_host_ran_on_behind_an_old_call_has_a_device_that_stands() -> None:
    text = "".join(watchdog(rank, 5 if rank == 2 else 8, enqueued=10) for rank in range(4))

    assert verdicts(text) == [("DD122", (2,))]


def test_the_launchers_prefix_is_the_rank_and_not_what_torch_prints_within_a_group() -> None:
    """In a group of ranks 4 and 6 torch calls them 0 and 1."""
    group = "PG ID 2 PG GUID 9(mesh_tp)"
    text = watchdog(4, 11, group=group, inner=0, size=8) + watchdog(6, 11, group=group, inner=1, size=8)

    assert verdicts(text) == [("DD122", (4, 6))]


def test_a_rank_that_prints_no_timeout_of_everybodys_group_had_not_come() -> None:
    text = "".join(watchdog(rank, 11) for rank in (0, 1, 3))

    assert verdicts(text) == [("DD116", (2,))]


def test_groups_are_judged_apart() -> None:
    """Ranks 0-1 and 2-3 are in different groups, at different numbers."""
    text = "".join(
        watchdog(rank, 100 + rank // 2, group=f"PG ID {rank // 2} PG GUID {rank // 2}(tp)") for rank in range(4)
    )

    assert [code for code, _ in verdicts(text)] == ["DD122"]


def test_torchs_desync_report_names_who_did_not_join() -> None:
    text = (
        "[rank0]:[E515 18:36:47 ProcessGroupNCCL.cpp:1937] Rank 0\n"
        "\t - [0] Timeout at collective: ALLREDUCE, #315\n"
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        "\t   [7] finished collective #182, but didn't join collective #183 (count from 1)\n"
        "\t - Snapshot of ranks' latest states:\n"
        "\t   #182 finished ranks:\n"
        "\t     [7] finished ALLREDUCE\n"
    )
    assert verdicts(text) == [("DD116", (7,))]


def test_the_kernels_killer_and_torchruns_table_name_the_rank_together() -> None:
    kernel = "[ 8123.4] Out of memory: Killed process 4711 (python3) total-vm:98304kB, anon-rss:81920kB\n"
    (finding,) = told(TORCHRUN + kernel)

    assert (finding.code, finding.ranks) == ("DD110", (2,))
    assert "for lack of memory" in finding.title


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (PREAMBLE + STORE + PEER + TORCHRUN, "DD103"),
        (STORE + PEER + TORCHRUN, "DD118"),
        (PEER + TORCHRUN, "DD110"),
        (
            STORE + "".join(watchdog(rank, 8, "BROADCAST" if rank else "ALLREDUCE", size=rank) for rank in range(4)),
            "DD102",
        ),
    ],
)
def test_of_several_traces_in_a_log_the_most_specific_is_told_whichever_check_is_asked_first(
    text: str, code: str
) -> None:
    found = examine(parse_log(text), CHECKS).findings

    assert [finding.code for finding in found] == [code]
    assert found == examine(parse_log(text), CHECKS[::-1]).findings


def test_a_log_comes_by_standard_input(say: Callable[..., Any]) -> None:
    text = "".join(watchdog(rank, 808, size=72 if rank == 3 else 64) for rank in range(4))

    said = say("examine", "-", given=text)

    assert said.code == 3, said.err
    assert said.out.startswith("DD103 error  rank 3")


@pytest.mark.parametrize(
    "piece", ['"key":1,', "keys default_pg/1", "oom-kill:", "- [1, ", "[PG 1 ", 'File "', "a.", "rank:"]
)
def test_a_hostile_line_takes_no_time(piece: str) -> None:
    since = time.process_time()
    parse_log("\n".join([piece * 40_000] * 20))

    assert time.process_time() - since < 2


def test_explain_says_where_a_retired_code_went(say: Callable[..., Any]) -> None:
    said = say("explain", "DD127")

    assert said.code == 0
    assert said.out.startswith("DD127 told-by-the-log is retired")
    assert "DD103 mismatched-shape" in said.out


def test_explain_says_where_what_stacks_tell_went(say: Callable[..., Any]) -> None:
    said = say("explain", "ranks-apart")

    assert said.out.startswith("DD126 ranks-apart is retired")
    assert "DD112 rank-conditional-collective" in said.out


def test_a_timeout_without_its_groups_name_is_of_the_only_group_at_that_number() -> None:
    unnamed = "".join(line for line in watchdog(2, 1580).splitlines(keepends=True) if "Watchdog" in line)

    assert verdicts(watchdog(0, 1580) + unnamed + watchdog(1, 1580)) == [("DD122", (0, 1, 2))]


FRAME = '[rank1]:   File "/job/train.py", line 33, in main\n'


@pytest.mark.parametrize(
    ("lines", "code", "title"),
    [
        (("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 79 GiB",),
         "DD408", "could not allocate 1 GiB of device memory"),
        (("RuntimeError: CUDA error: out of memory",), "DD408", "could not allocate device memory"),
        (("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. You can",
          "Parameter indices which did not receive grad for rank 1: 4 5"), "DD121", "parameters number 4, 5"),
        (("RuntimeError: Error(s) in loading state_dict for Net:", '\tMissing key(s) in state_dict: "fc1.weight".',
          '\tUnexpected key(s) in state_dict: "module.fc1.weight".'), "DD701", "wrapper's prefix"),
        (("RuntimeError: Error(s) in loading state_dict for Net:", '\tMissing key(s) in state_dict: "fc1.weight".',
          '\tUnexpected key(s) in state_dict: "fc2.weight".'), "DD110", "failed with RuntimeError"),
        (("ValueError: bad value",), "DD110", "failed with ValueError"),
    ],
)  # fmt: skip
def test_an_exception_is_told_as_what_it_says(lines: tuple[str, ...], code: str, title: str) -> None:
    (finding,) = told(FRAME + "".join(f"[rank1]: {line}\n" for line in lines))

    assert (finding.code, finding.ranks, finding.place.line) == (code, (1,), 33)
    assert title in finding.title


def detail(rank: int, own: str, peer: int, other: str) -> str:
    """What torch 2.15 prints under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is running collective: "
        f"CollectiveFingerPrint(SequenceNumber=1{own}), but Rank {peer} is running collective: "
        f"CollectiveFingerPrint(SequenceNumber={other}).Collectives differ in the following aspects: ...\n"
    )


DEVICE = ", TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, memory_format=(nullopt))"
REDUCE = ", OpType=ALLREDUCE, TensorShape=[10, 3], TensorDtypes=Float" + DEVICE
SMALLER, DOUBLE = REDUCE.replace("10, 3", "5, 3"), REDUCE.replace("Float", "Double")


@pytest.mark.parametrize(
    ("text", "code", "ranks"),
    [
        (detail(0, REDUCE, 1, "0OpType=REDUCE") + detail(1, "OpType=BARRIER", 0, "0OpType=SCATTER")
         + detail(2, REDUCE, 1, "0OpType=REDUCE"), "DD102", (1,)),
        (detail(0, REDUCE, 1, "1" + SMALLER) + detail(1, SMALLER, 0, "1" + REDUCE) + detail(2, REDUCE, 1, "1" + SMALLER),
         "DD103", (1,)),
        (detail(0, REDUCE, 1, "0OpType=REDUCE"), "DD102", (0, 1)),
        (detail(0, REDUCE, 1, "1" + DOUBLE), "DD104", (0, 1)),
        # numbers within groups: who the peer is, and who is in which group, nobody says
        (detail(0, REDUCE, 1, "1" + DOUBLE).replace("[rank0]", "[rank4]"), "DD102", (4,)),
        (detail(0, REDUCE, 1, "1" + DOUBLE) + detail(0, SMALLER, 1, "1" + REDUCE).replace("[rank0]", "[rank4]"), "DD102", (0,)),
    ],
)  # fmt: skip
def test_what_torch_compared_itself_names_who_differs_and_in_what(text: str, code: str, ranks: tuple[int, ...]) -> None:
    assert verdicts(text) == [(code, ranks)]


TORCHRUNS_TABLE = """\
[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 1 (pid: 1312) of binary: /usr/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 1312)
"""
EACH_ON_ITS_HOST = """\
2025-01-05T10:00:00.123Z trainer-0 [rank3]:   File "/app/train.py", line 12, in main
2025-01-05T10:00:00.125Z trainer-0 [rank3]: KeyError: 'labels'
node2: [rank9]: [rank9]: torch.distributed.DistBackendError: Connection reset by peer
"""
RAY = """\
\x1b[36m(RayTrainWorker pid=4009, ip=10.0.0.2)\x1b[0m   File "/app/train.py", line 12, in main
\x1b[36m(RayTrainWorker pid=4009, ip=10.0.0.2)\x1b[0m KeyError: 'labels'
(RayTrainWorker pid=4010) [rank1]: RuntimeError: Connection closed by peer
"""
BARRIER = """\
[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.
[rank0]: ZeroDivisionError: division by zero
"""
MISSED = """\
[rank2]: RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.
[rank0]: RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 10000 ms
"""
OWN_SERVER = """\
[rank1]:   File "/app/serve.py", line 4, in main
[rank1]: OSError: [Errno 98] Address already in use
"""
NAMES_ANOTHER = "[rank1]: ValueError: bad reply of [rank3]: no shape\n"
IN_USE = """\
torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, \
useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use
"""


@pytest.mark.parametrize(
    ("text", "code", "ranks"),
    [
        (TORCHRUNS_TABLE, "DD110", (1,)),
        (EACH_ON_ITS_HOST, "DD110", (3,)),
        (RAY, "DD110", ()),
        (BARRIER, "DD110", (0,)),
        (MISSED, "DD116", (1, 3)),
        (OWN_SERVER, "DD110", (1,)),
        (NAMES_ANOTHER, "DD110", (1,)),
        (IN_USE, "DD605", ()),
    ],
)
def test_the_cause_is_told_and_not_what_follows_from_it(text: str, code: str, ranks: tuple[int, ...]) -> None:
    assert verdicts(text) == [(code, ranks)]


# As NCCL prints them, without the launcher's prefix and its own, `HOST:PID NCCL DIAG`.
DIAGNOSTICS = """\
=== RAS Diagnostics ===
[OK]   GPU inventory: 8x NVIDIA H100 per node consistent across 8 ranks in comm 0x1234
[INFO] CUDA driver version: mismatch across 8 ranks in comm 0x1234, rank(s) {4,5} differ from rank 0 (13000)
[INFO] ECC: uncorrected volatile errors on rank(s) {3} (worst=2) across 8 ranks in comm 0x1234
[INFO] NVLink: inactive link(s) on rank(s) {6,7} across 8 ranks in comm 0x1234
[INFO] NCCL environment: mismatch across 8 ranks in comm 0x1234 for NCCL_ALGO
[INFO] NCCL environment: NCCL_ALGO=Ring on rank(s) {0,1,2,3}
[INFO] NCCL environment: NCCL_ALGO=Tree on rank(s) {4,5,6,7}
[INFO] NCCL environment: mismatch across 8 ranks in comm 0x1234 for NCCL_DEBUG
[INFO] GPU inventory: unavailable via NVML across 8 ranks in comm 0x5678
RAS diagnostics completed in 12.3 ms across 8 RAS peers
[INFO] p2p: write mismatch srcRank=1 srcCudaDev=1 dstRank=2 dstCudaDev=2 path=NVL expected=0x1 got=0x0 verify=0x0; check
"""


def test_what_nccls_own_diagnostics_remarked_on_is_told_rank_by_rank() -> None:
    loaded = PLUGINS

    log = "".join(f"[default0]:node042:12345 NCCL DIAG {line}\n" for line in DIAGNOSTICS.splitlines())
    found = examine(parse_log(log), loaded.checks.values(), loaded.remedies).findings

    assert {one.code for one in found} == {"DD610"}
    assert [(one.severity, one.title, one.ranks) for one in found] == [
        (ERROR, "ranks 1-2 exchanged data and got other data", (1, 2)),
        (ERROR, "rank 3: uncorrected errors of the GPU's memory", (3,)),
        (WARNING, "NCCL_ALGO differs between ranks", ()),
        (WARNING, "ranks 4-5: another CUDA driver than the others (13000)", (4, 5)),
        (WARNING, "ranks 6-7: an NVLink is down", (6, 7)),
    ]
    assert list(found[2].evidence.values()) == [
        "mismatch across 8 ranks in comm 0x1234 for NCCL_ALGO",
        "NCCL_ALGO=Ring on rank(s) {0,1,2,3}",
        "NCCL_ALGO=Tree on rank(s) {4,5,6,7}",
    ]


def test_long_lines_without_a_space_take_no_longer_than_others() -> None:
    log = (
        "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:" + "9" * 2700 + "] Connection closed by peer\n"
    ) * 600

    began = time.process_time()
    parse_log(log)

    assert time.process_time() - began < 2  # four seconds and more, where a pattern began at every letter


OLD = "[E ProcessGroupNCCL.cpp:458] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={}, "
OLD_END = "Timeout(ms)=1800000) ran for 1801000 milliseconds before timing out.\n"


def old(rank: int, number: int, operation: str = "ALLREDUCE") -> str:
    """As torch 2.0 prints it: of which group it does not say."""
    return OLD.format(rank, number, operation) + OLD_END


def test_a_line_that_is_cut_in_its_middle_is_no_other_operation() -> None:
    lines = "".join(old(rank, 9) for rank in (0, 1, 2)) + OLD.format(3, 9, "ALLR").rstrip(", ")
    named = "".join(watchdog(rank, 9) for rank in range(4))

    assert verdicts(lines) == [("DD122", (0, 1, 2, 3))]
    assert verdicts(named[: named.rindex("ALLREDUCE") + 4]) == [("DD122", (0, 1, 2, 3))]


def test_a_line_that_is_cut_in_a_size_is_no_other_size() -> None:
    text = "".join(watchdog(rank, 9, size=6400) for rank in range(4))

    assert verdicts(text[: text.rindex("NumelOut=6400") + 11]) == [("DD122", (0, 1, 2, 3))]


def test_numbers_of_several_groups_without_a_name_are_not_compared() -> None:
    text = old(0, 96120) + old(0, 96117) + old(0, 96125) + old(7, 64088)
    (finding,) = told(text)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD122", (0, 7), POSSIBLE)
    assert "several groups" in finding.title


def test_numbers_without_a_groups_name_make_nothing_likely() -> None:
    (skipped,) = told("".join(old(rank, 5 if rank == 2 else 8) for rank in range(4)))
    (other,) = told("".join(old(rank, 5, "BROADCAST" if rank == 1 else "ALLREDUCE") for rank in range(4)))

    assert [(one.code, one.ranks, one.confidence) for one in (skipped, other)] == [
        ("DD101", (2,), POSSIBLE),
        ("DD102", (1,), POSSIBLE),
    ]


def test_a_rank_whose_watchdog_struck_is_not_missing_although_its_timeout_is_not_in_the_log() -> None:
    struck = watchdog(2, 11).splitlines(keepends=True)[1]

    assert verdicts("".join(watchdog(rank, 11) for rank in (0, 1, 3)) + struck) == [("DD122", (0, 1, 2, 3))]


def table(*ends: tuple[int, int, str]) -> str:
    """Torchrun's table of (rank, exit code, time of the day)."""
    return "".join(
        f"[{i}]:\n  time      : 2026-03-01_{at}\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {4000 + rank})\n"
        for i, (rank, code, at) in enumerate(ends)
    )


def test_of_ranks_that_ended_in_one_second_none_is_called_the_cause() -> None:
    (finding,) = told(table((1, 1, "10:00:07"), (2, 1, "10:00:07"), (0, 1, "10:00:07")))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD110", (0, 1, 2), POSSIBLE)
    assert "does not show" in finding.why


def test_the_rank_that_ended_first_by_the_clock_is_told_and_not_the_lowest(
    say: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text(text := table((3, 1, "10:00:59"), (0, 1, "10:00:59"), (4, 1, "10:00:07")))

    assert verdicts(text) == [("DD110", (4,))]
    assert "2 ranks ended after it (ranks 0,3)" in say("examine", str(tmp_path / "job.log")).out


HOST = "node7:4711:4802 [1] "


@pytest.mark.parametrize(
    ("text", "code", "ranks"),
    [
        ("net.cc:90 NCCL WARN Net : Call to recv from 10.0.0.2<4711> failed : Broken pipe\n"
         "proxy.cc:11 NCCL WARN [Proxy Service 9] Failed to execute operation Connect from rank 9\n", "DD110", ()),
        ("a\nncclInternalError: Internal check failed.\nLast error:\nNet : Connection closed by remote peer n2<4711>\n",
         "DD110", ()),
        ("init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000\n", "DD601", ()),
        ("init.cc:12 NCCL WARN Mismatched collective detected, please check your calls at and around rank 3.\n",
         "DD102", ()),
        ("ib.cc:16 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<5> with status=12 opcode=0\n", "DD122", ()),
    ],
)  # fmt: skip
def test_a_warning_of_nccls_is_told_as_what_it_says(text: str, code: str, ranks: tuple[int, ...]) -> None:
    (finding,) = told(HOST + text)

    assert (finding.code, finding.ranks) == (code, ranks)
    assert "every rank has issued" not in finding.prescriptions[0].change


CUT_OFF = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: python\n"
NOBODY = """\
[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to 10.0.0.1:29500
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.
"""
INTO_EACH_OTHER = """\
RuntimeErrorpred = net(x)  # forward  File "/opt/torch/nn/modules/module.py", line 1102, in _call_impl
: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates
Parameters which did not receive grad for rank 4: head.bias
"""
LOGGED = "[RANK 1] 2026-03-01 10:00:29 [ERROR] guard open: " + detail(1, REDUCE, 0, "0OpType=REDUCE")[21:]


@pytest.mark.parametrize(
    ("text", "code", "title"),
    [
        (CUT_OFF, "DD110", "exitcode: -9, local_rank: 3"),
        ("srun: error: n12: task 0: Segmentation fault\nsrun: error: n12: task 1: Terminated\n", "DD110", "n12: task 0"),
        ("srun: error: n0: tasks 2-7: Exited with exit code 1\n", "DD110", "tasks 2-7, Exited with exit code 1"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=9.0. Some of the step tasks have been OOM Killed.\n",
         "DD110", "lack of memory"),
        ("mpirun noticed that process rank 7 with PID 0 on node n1 exited on signal 9 (Killed).\n", "DD110",
         "process rank 7, signal 9 (Killed)"),
        ("[1,12]<stderr>:[n3:86] Signal: Segmentation fault (11)\n", "DD110", "crashed: Segmentation fault"),
        (NOBODY, "DD118", "the store at 10.0.0.1:29500 did not answer"),
        ("RuntimeError: connect() timed out. Original timeout was 60000 ms.\n", "DD118", "did not answer"),
        ("torch.distributed.DistStoreError: Timed out after 6 seconds waiting for workers. 1/2 workers joined.\n",
         "DD118", "only 1 of 2 ranks"),
        (INTO_EACH_OTHER, "DD121", "head.bias"),
        (LOGGED, "DD102", "operation"),
        (LOGGED.partition(", but")[0], "DD102", "collectives differ: rank 1 of the group called ALLREDUCE"),
        (LOGGED.replace("OpType=REDUCE)", "OpType=ALLREDUCE)").replace("=REDUCE", "=ALLREDUCE"), "DD102", "collectives differ"),
        ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n",
         "DD606", "shared memory was full"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that\n", "DD606", "bus error"),
        ("[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:2222 (errno: 98 - Address already in use).\n"
         "[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network address.\n", "DD605",
         "port 2222"),
        ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. The server "
         "socket has failed to bind to [::]:2223 (errno: 98 - Address already in use).\n", "DD605", "port 2223"),
        (HOST + "bootstrap.cc:1 NCCL WARN Bootstrap Root : rank 3 of 8 ranks has already checked in\n", "DD118",
         "as rank 3 of 8"),
        (HOST + "init.cc:9 NCCL WARN Invalid rank requested : 4/4\n", "DD118", "as rank 4 of 4"),
        ("ValueError: host not found: Name or service not known\n", "DD118", "not known by its name"),
        ("RuntimeError: Timed out initializing process group in store based barrier on rank: 5, for key: store_based_barrier_key"
         ":2 (world_size=8, worker_count=6, timeout=0:30:00)\n", "DD118", "only 6 of 8 ranks"),
        ("RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key"
         ":1 (world_size=4, worker_count=8, timeout=0:30:00)\n", "DD118", "8 processes came to the store, of 4 ranks"),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
         "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: x\n",
         "DD110", "a process ended badly: Worker, SYSTEM_ERROR"),
        ("[E ProcessGroupNCCL.cpp:485] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, "
         "Timeout(ms)=1800000) ran for 1802246 milliseconds before timing out.\n", "DD122", "timed out in ALLREDUCE"),
        (watchdog(2, 7).replace("timeout: ", "timeout: \n"), "DD122", "timed out in ALLREDUCE #7"),
    ],
)  # fmt: skip
def test_what_launchers_schedulers_and_loggers_print_is_read(text: str, code: str, title: str) -> None:
    (finding,) = told(text)

    assert (finding.code, title in finding.title) == (code, True), finding.title
    assert finding.ranks in ((), (12,), (1,), (2,), (4,), (0,), (0, 1), (2, 3, 4, 5, 6, 7))


@pytest.mark.parametrize(
    ("packed", "what"),
    [(gzip.compress, "packed by gzip"), (lzma.compress, "packed by xz"), (bz2.compress, "packed by bzip2")],
)
def test_a_log_that_is_packed_is_not_said_to_tell_of_no_error(
    packed: Callable[[bytes], bytes], what: str, tmp_path: Path
) -> None:
    (path := tmp_path / "job.log.1").write_bytes(packed(50 * PEER.encode()))

    with pytest.raises(UnreadableRecording, match=f"is no text but {what}"):
        read_any(path)


def test_a_log_in_utf_16_is_not_said_to_tell_of_no_error(tmp_path: Path) -> None:
    (path := tmp_path / "job.log").write_text(PEER, "utf-16")

    with pytest.raises(UnreadableRecording, match="is no text but UTF-16"):
        read_any(path)


def test_a_name_that_is_too_long_for_a_file_is_that_of_none() -> None:
    with pytest.raises(NothingToInspect, match="no such file or folder: xxx"):
        read_any(Path("x" * 5000))


BAR = "Preparing set...:  39%|###9      | 26/67 [24:51<30:30, 44.65s/it]"


def barrier(rank: int, size: int = 1) -> str:
    return (
        f"[E ProcessGroupNCCL.cpp:475] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, "
        f"OpType=ALLREDUCE, NumelIn={size}, NumelOut={size}, Timeout(ms)=1800000) ran for 1800008 milliseconds.\n"
    )


@pytest.mark.parametrize(
    ("text", "code", "ranks"),
    [
        (BAR + "\n" + barrier(1) + barrier(2), "DD129", ()),
        (BAR + barrier(2) + barrier(1), "DD129", ()),  # the bar leaves the line open
        ("[default0]:" + BAR + "[default2]:" + barrier(2), "DD129", (0,)),
        ("[INFO | data] | " + BAR + "\n" + barrier(1), "DD129", ()),
        (BAR + "\n" + barrier(0) + barrier(1), "DD122", (0, 1)),  # who draws bars most likely waits itself
        (BAR.replace("26/67", "67/67") + "\n" + barrier(1), "DD122", (1,)),
        (BAR.replace("Preparing set...", "Epoch 1") + "\n" + barrier(1), "DD122", (1,)),
        (BAR + "\n" + barrier(1, 4096), "DD122", (1,)),  # no barrier
        (BAR + "\n" * 60 + barrier(1), "DD122", (1,)),  # long before
    ],
)
def test_a_progress_bar_before_a_barriers_timeout_shows_work_that_took_too_long(
    text: str, code: str, ranks: tuple[int, ...]
) -> None:
    assert verdicts(text) == [(code, ranks)]


def test_all_ranks_that_share_a_device_are_told_together() -> None:
    pairs = ((1, 0, "c1000"), (2, 0, "c1000"), (3, 5, "d2000"))
    words = "[1,{0}]<stdout>:n:1:2 [0] init.cc:4 NCCL WARN Duplicate GPU detected : rank {0} and rank {1} both on CUDA device {2}"
    lines = [words.format(*pair) for pair in pairs]

    (finding,) = told("\n".join(lines))

    assert finding.ranks == (0, 1, 2, 3, 5)
    assert finding.title.endswith("ranks 0-2 CUDA device c1000, ranks 3,5 CUDA device d2000")


@pytest.mark.parametrize(("code", "look"), [(-7, "/dev/shm"), (-9, "dmesg"), (-11, "PYTHONFAULTHANDLER")])
def test_what_is_worth_a_look_depends_on_the_signal(code: int, look: str) -> None:
    (finding,) = told(f"[ERROR] [launch.py:321:sigkill_handler] ['python', 'x.py'] exits with return code = {code}\n")

    assert look in finding.prescriptions[0].change


def test_a_port_that_was_in_use_long_before_the_error_is_not_its_cause() -> None:
    taken = (
        "[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:2222 (errno: 98 - Address already in use).\n"
        "[E socket.cpp:435] [c10d] The server socket has failed to listen on any local network address.\n"
    )
    steps = "step 1 loss 0.5\n" * 300

    assert verdicts(taken + steps + "[rank1]: ValueError: empty batch\n") == [("DD110", (1,))]
    assert verdicts("[rank1]: ValueError: empty batch\n" + taken) == [("DD110", (1,))]
    (finding,) = told(taken + steps)
    assert (finding.code, finding.confidence) == ("DD605", POSSIBLE)


def nccl2(rank: int, group: str = "0", prefix: str = "", ms: int = 600012) -> str:
    """What backend nccl2 (torch 2.15) prints of a rank whose call timed out."""
    start = f"[E1126 17:48:01.005271823 WorkNCCL.cpp:231] [TC][rank {rank}][comm {group}]"
    end = f"[E1126 17:48:02.005271823 ProcessGroupNCCL.cpp:610] [TC][rank={rank}][name={group}] Aborting process on rank {rank}"
    return (
        f"{prefix}{start} Operation timed out after {ms} ms\n"
        f"{prefix}{end} due to timeout - timeout watchdog detected operation timeout\n"
    )


JOINED_IN = "[rank2]: UserWarning: the data of epoch 3 are read again\n[rank2]: KeyboardInterrupt: \n"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("".join(nccl2(rank, prefix=f"[rank{rank}]:") for rank in range(3)), ("DD122", (0, 1, 2))),
        (nccl2(0, prefix="[rank0]:") + nccl2(1, prefix="[rank1]:") + JOINED_IN, ("DD116", (2,))),
        (
            nccl2(0, prefix="[rank4]:") + nccl2(1, prefix="[rank5]:"),
            ("DD122", (4, 5)),
        ),  # one side is as large as the other
        (nccl2(0) + nccl2(1), ("DD122", (0, 1))),  # no launcher's prefix
        (nccl2(0, "tp_1", prefix="[rank2]:") + nccl2(1, "tp_1", prefix="[rank3]:"), ("DD122", (2, 3))),
        (nccl2(0, "tp_1"), ("DD122", ())),  # counted in a group that is not everybody's
        (nccl2(1, prefix="[rank1]:").partition("\n")[2], ("DD110", (1,))),
    ],
    ids=[
        "all",
        "one was elsewhere",
        "many print nothing",
        "inner ranks",
        "of a smaller group",
        "whose is not told",
        "only its end",
    ],
)
def test_timeouts_of_torchs_second_backend_of_nccl_are_read(text: str, verdict: tuple[str, tuple[int, ...]]) -> None:
    assert verdicts(text) == [verdict]


def test_the_line_in_which_a_timeout_of_nccl2_was_raised_is_the_place() -> None:
    raised = (
        '[rank1]:   File "/home/u/train.py", line 31, in step\n'
        "[rank1]: torch.distributed.DistBackendError: NCCL operation timed out\n"
    )

    (finding,) = told(nccl2(0, prefix="[rank0]:") + nccl2(1, prefix="[rank1]:") + raised)

    assert (finding.code, finding.ranks, finding.place.line) == ("DD122", (0, 1), 31)


def test_what_nccl2_says_of_an_error_of_its_communicator_is_quoted() -> None:
    start = (
        "[rank1]:[E1126 17:48:01.0 ProcessGroupNCCLUtils.cpp:330] [TC][rank=1][name=0] nccl hit async error on rank 1: "
    )

    (finding,) = told(start + "unhandled cuda error\n")
    assert (finding.code, finding.title, finding.ranks) == ("DD122", "NCCL warned: unhandled cuda error", (1,))
    assert verdicts(start + "remote process exited or there was a network error\n") == [("DD110", ())]
    assert [code for code, _ in verdicts("[rank1]: ValueError: async error: the reader gave up\n")] == ["DD110"]


def test_a_lock_of_the_interpreter_that_torch_could_not_get_names_its_rank() -> None:
    stuck = "[E1126 17:48:01.0 HeartbeatMonitor.cpp:236] [TC][rank 3][comm 0] "
    text = (
        f"[rank3]:{stuck}ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring.\n"
        f"[rank3]:{stuck}Could not acquire GIL within 300 ms on exit, possible GIL induced hang\n"
        f"[rank3]:{stuck}Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n"
    )

    (finding,) = told(text)

    assert (finding.code, finding.ranks) == ("DD116", (3,))
    assert "keeps it" in finding.title
