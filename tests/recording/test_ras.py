"""What NCCL's RAS prints is read in both forms, and names who does not answer and who is behind."""

from __future__ import annotations

import json
import socket
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Said
from sick import PLUGINS

from distdoctor.attach import ras as port
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.hang.in_ras import RasRanks, hosts_behind
from distdoctor.errors import UnreadableRecording
from distdoctor.recording.open import read_any
from distdoctor.recording.ras import recording_of

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
TABLE = """\
NCCL version 2.28.9 compiled with CUDA 13.0
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

"""
BEHIND = """\
Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 6650
  Rank 3 has launched up to operation 6649 -- GPU 3 managed by process 483075 on node 172.16.64.210

"""
DEAD = """\
Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 483077 on node 172.16.64.210 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 5 -- GPU 5 managed by process 483077 on node 172.16.64.210

"""


def rank(number: int, **counts: int) -> dict[str, Any]:
    return {
        "rank": number, "host": "10.0.0.1", "pid": 1000 + number, "cuda_dev": number, "nvml_dev": number,
        "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False},
        "collective_counts": {"Broadcast": 1, "AllReduce": 100} | counts,
    }  # fmt: skip


def missing(number: int, *, dead: bool) -> dict[str, Any]:
    about = rank(number)
    del about["collective_counts"]
    return about | {"status": {"unresponsive": True, "considered_dead": dead}}


def answer(
    ranks: list[dict[str, Any]], absent: list[dict[str, Any]] | None = None, name: str = "0xae94"
) -> dict[str, Any]:
    absent = absent or []
    communicator = {
        "hash": name, "secondary_hash": "0x1:0x2", "size": len(ranks) + len(absent), "ranks_count": len(ranks),
        "missing_ranks_count": len(absent), "ranks": ranks, "missing_ranks": absent,
    }  # fmt: skip
    return {
        "nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000, "timestamp": "2025-12-19 13:06:53",
        "communicators_count": 1, "communicators": [communicator], "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }  # fmt: skip


def diagnosed(words: str) -> Diagnosis:
    return examine(recording_of(words), CHECKS)


def verdicts(content: dict[str, Any] | str) -> list[tuple[str, tuple[int, ...]]]:
    words = content if isinstance(content, str) else json.dumps(content, indent=2)
    return [(finding.code, finding.ranks) for finding in diagnosed(words).findings]


def test_a_process_that_does_not_answer_is_stopped() -> None:
    content = answer([rank(n) for n in range(8) if n != 2], [missing(2, dead=False)])

    assert verdicts(content) == [("DD117", (2,))]


def test_a_process_that_ras_takes_for_dead_has_died() -> None:
    content = answer([rank(n) for n in range(8) if n != 2], [missing(2, dead=True)])

    assert verdicts(content) == [("DD110", (2,))]


def test_a_host_that_has_launched_less_is_behind() -> None:
    assert verdicts(answer([rank(n, AllReduce=99 if n == 5 else 100) for n in range(8)])) == [("DD116", (5,))]


def test_a_host_that_launched_another_kind_of_call_is_named() -> None:
    content = answer([rank(n, AllReduce=99 if n == 5 else 100, Broadcast=2 if n == 5 else 1) for n in range(8)])

    assert verdicts(content) == [("DD102", (5,))]


def test_whoever_is_behind_because_it_waits_elsewhere_is_not_named() -> None:
    """Rank 1 is behind in the large communicator and ahead in the small one, in which rank 0 has not come."""
    content = answer([rank(n, AllReduce=99 if n in (0, 1) else 100) for n in range(8)])
    small = answer([rank(0, AllReduce=49), rank(1, AllReduce=50)], name="0x77")["communicators"]
    content["communicators"] += small

    assert verdicts(content) == [("DD116", (0,))]


def test_an_error_of_the_communicator_is_the_backends() -> None:
    ranks = [rank(n) for n in range(4)]
    ranks[3]["status"]["async_error"] = 6

    assert verdicts(answer(ranks)) == [("DD122", (3,))]


def test_equal_counts_are_unknown_and_never_healthy() -> None:
    diagnosis = diagnosed(json.dumps(answer([rank(n) for n in range(8)])))

    assert not diagnosis.findings
    assert not diagnosis.healthy
    assert "not what devices completed" in diagnosis.left_open[0]


def test_the_memory_for_a_large_communicator_grows_with_its_ranks_not_their_square() -> None:
    behind = [rank(number, AllReduce=99 if number == 7 else 100) for number in range(4000)]
    report = recording_of(json.dumps(answer(behind))).ras
    assert report is not None

    tracemalloc.start()
    titles = [finding.title for finding in hosts_behind(RasRanks(report))]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(titles) == 1
    assert peak < 32 << 20  # a list of all members for each rank took 128 MiB


def test_a_size_that_no_job_has_does_not_fill_the_reader() -> None:
    row = "    0         1         1         8         8         8   RUNNING  MISMATCH"
    assert row in TABLE

    diagnosis = diagnosed(
        TABLE.replace(row, row.replace("        8         8   R", "  99999999990         8   R")) + BEHIND
    )

    assert not diagnosis.healthy


def test_the_text_form_gives_the_same_verdicts() -> None:
    assert verdicts(TABLE + BEHIND) == [("DD116", (3,))]
    assert verdicts(TABLE + DEAD) == [("DD110", (5,))]


def test_a_file_of_ras_is_examined(tmp_path: Path) -> None:
    (tmp_path / "ras.json").write_text(json.dumps(answer([rank(n, AllReduce=99 if n == 5 else 100) for n in range(8)])))
    (tmp_path / "ras.txt").write_text(TABLE + BEHIND)

    assert read_any(tmp_path / "ras.json").ras is not None
    assert read_any(tmp_path / "ras.txt").world_size == 8


WATCHDOG = (
    "[rank3]:[E603 17:48:01.0 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=239, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=1800000) ran for 1800068 milliseconds.\n"
)


def test_what_ranks_print_behind_an_answer_in_one_file_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(TABLE + WATCHDOG)

    found = read_any(tmp_path / "job.log")

    assert found.ras is not None
    assert [(one.code, one.ranks) for one in examine(found, CHECKS).findings] == [("DD122", (3,))]


def test_what_comes_by_the_standard_input_is_examined(say: Callable[..., Said]) -> None:
    assert "DD116" in say("examine", "-", given=TABLE + BEHIND).out
    assert (
        "DD116"
        in say("examine", "-", given=json.dumps(answer([rank(n, AllReduce=9 + (n != 1)) for n in range(3)]))).out
    )


def test_the_few_that_are_ahead_in_one_answer_accuse_nobody(say: Callable[..., Said]) -> None:
    """Somebody comes first to each call of a job that runs; of thirty that have not come none is at fault."""
    early = say("examine", "-", given=json.dumps(answer([rank(n, AllReduce=640 + (n in (6, 7))) for n in range(8)])))
    late = say("examine", "-", given=json.dumps(answer([rank(n, AllReduce=640 - (n in (6, 7))) for n in range(8)])))

    assert early.code == 5
    assert "DD116" not in early.out
    assert "ranks 6-7 are ahead of the other 6 ranks" in early.out
    assert "ranks 6-7" in late.out
    assert "DD116" in late.out


def test_a_torn_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    words = json.dumps(answer([rank(n) for n in range(8)]))
    (tmp_path / "ras.json").write_text(words[: len(words) // 2])

    with pytest.raises(UnreadableRecording, match="or a torn one"):
        read_any(tmp_path / "ras.json")


@pytest.mark.parametrize("knows_json", [True, False])
def test_the_port_is_asked_for_json_and_then_for_text(knows_json: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server, knows_json), daemon=True)
        thread.start()
        report = port.ask("127.0.0.1", server.getsockname()[1])
    thread.join(10)

    assert report is not None
    assert bool(report.version) is knows_json
    assert report.communicators[0].size == 8


def _serve(server: socket.socket, knows_json: bool) -> None:
    """A server that speaks RAS's protocol, of a version that knows JSON or of an older one."""
    for _ in range(1 if knows_json else 2):
        line, _ = server.accept()
        with line, line.makefile("rwb") as file:
            form = "text"
            for command in file:
                if command.startswith(b"SET FORMAT"):
                    form = "json" if knows_json else form
                    file.write(b"OK\n" if knows_json else b"ERROR: Unknown command\n")
                    file.flush()
                    if not knows_json:
                        break
                else:
                    words = json.dumps(answer([rank(n) for n in range(8)])) if form == "json" else TABLE + BEHIND
                    file.write(words.encode())
                    file.flush()
                    break


def test_nobody_is_asked_where_no_rank_listens() -> None:
    assert port.report_of_job([]) is None
