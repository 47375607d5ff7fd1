"""Flight recorder dumps are read like recordings: real ones of gloo, written ones of NCCL and torchcomms, and hostile ones."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sick import PLUGINS

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.errors import NothingToInspect, UnreadableRecording
from distdoctor.recording.flight import reading
from distdoctor.recording.flight.dumps import rank_in, read_dump
from distdoctor.recording.flight.entries import op_of
from distdoctor.recording.flight.reading import read_dumps
from distdoctor.recording.open import read_any
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import CallFlag, Op

GOLDEN = Path(__file__).parent.parent / "recordings" / "flight_recorder"
START = 1_700_000_000_000_000_000


def diagnosed(recording: Recording) -> Diagnosis:
    found = PLUGINS
    return examine(recording, found.checks.values(), found.remedies)


def verdicts(recording: Recording) -> list[tuple[str, tuple[int, ...], int]]:
    return [(f.code, f.ranks, f.place.line) for f in diagnosed(recording).findings]


def entry(
    number: int, op: str = "nccl:all_reduce", *, line: int = 41, group: Sequence[str] = ("0", "default_pg"), **more: Any
) -> dict[str, Any]:
    made = {
        "record_id": number - 1, "pg_id": 0, "process_group": tuple(group), "collective_seq_id": number, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": op, "time_created_ns": START + number * 1_000_000, "input_sizes": [[4, 4]],
        "input_dtypes": ["Float"], "output_sizes": [[4, 4]], "output_dtypes": ["Float"],
        "state": "completed", "retired": True,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": START + number * 1_000_000 + 500,
        "timeout_ms": 600000, "is_p2p": False, "frames": [
            {"name": "all_reduce", "filename": "/v/site-packages/torch/distributed/distributed_c10d.py", "line": 4181},
            {"name": "step", "filename": "/job/train.py", "line": line},
        ],
    }  # fmt: skip
    return made | more


PENDING = {"state": "started", "retired": False, "time_discovered_completed_ns": None}


def dump(entries: list[dict[str, Any]], ranks: str = "[0, 1]", **more: Any) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.5",
        "pg_config": config,
        "pg_status": {},
        "entries": entries,
    } | more


def write(
    folder: Path, dumps: dict[int, dict[str, Any]], prefix: str = "comm_lib_trace_rank_", *, as_json: bool = False
) -> Path:
    for rank, content in dumps.items():
        path = folder / f"{prefix}{rank}"
        if as_json:
            path.with_name(path.name + ".json").write_text(json.dumps(content))
        else:
            path.write_bytes(pickle.dumps(content, protocol=2))
    return folder


def skipped(culprit: int, world: int) -> dict[int, dict[str, Any]]:
    """`culprit` leaves out the all_reduce of step 5 of 6 and goes on to the barrier."""
    dumps = {}
    for rank in range(world):
        ops = [(op, line) for _ in range(6) for op, line in (("nccl:all_reduce", 41), ("nccl:barrier", 57))]
        if rank == culprit:
            del ops[8]
        ops = ops[:9]
        entries = [entry(n, op, line=line) for n, (op, line) in enumerate(ops, start=1)]
        entries[-1] |= PENDING
        for one in entries:
            if one["profiling_name"] == "nccl:barrier":
                one |= {"input_sizes": [], "input_dtypes": []}
        dumps[rank] = dump(entries, str(list(range(world))))
    return dumps


@pytest.mark.parametrize("torch", ["2.13", "2.15"])
def test_a_real_gloo_dump_names_the_rank_that_skipped_and_its_line(torch: str) -> None:
    recording = read_any(GOLDEN / f"gloo-torch-{torch}-skip")

    assert verdicts(recording) == [("DD101", (1,), 14)]
    assert {place.site.line: place.ranks for place in diagnosed(recording).findings[0].places} == {9: (0,), 14: (1,)}


@pytest.mark.parametrize("torch", ["2.13", "2.15"])
def test_a_real_gloo_dump_names_the_rank_that_never_came(torch: str) -> None:
    assert [(code, ranks) for code, ranks, _ in verdicts(read_any(GOLDEN / f"gloo-torch-{torch}-sleep"))] == [
        ("DD116", (1,))
    ]


@pytest.mark.parametrize("torch", ["2.13", "2.15"])
def test_the_json_form_has_no_lines_and_gives_the_same_verdict(torch: str) -> None:
    assert verdicts(read_any(GOLDEN / f"gloo-torch-{torch}-skip-json")) == [("DD101", (1,), 0)]


def test_broken_pg_config_of_gloo_is_repaired_from_the_entries() -> None:
    recording = read_any(GOLDEN / "gloo-torch-2.15-skip")

    assert [(g.name, g.ranks, g.backend) for g in recording.ranks[0].group_list()] == [("0", (0, 1), "gloo")]


@pytest.mark.parametrize("culprit", range(4))
def test_the_verdict_does_not_depend_on_who_it_was_nor_on_the_order_of_files(tmp_path: Path, culprit: int) -> None:
    paths = list(write(tmp_path, skipped(culprit, 4)).iterdir())
    found = set()
    for seed in range(6):
        random.Random(seed).shuffle(paths)
        found.add(tuple(verdicts(read_dumps(paths))))

    assert found == {(("DD101", (culprit,), 57),)}


def test_several_processes_read_what_one_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = list(write(tmp_path, skipped(3, 9)).iterdir())
    (tmp_path / "comm_lib_trace_rank_9").write_bytes(b"\x80\x02torn")
    alone = read_dumps([*paths, tmp_path / "comm_lib_trace_rank_9"])
    monkeypatch.setattr(reading, "DUMPS_PER_PROCESS", 2)
    monkeypatch.setattr(reading.os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr(reading.threading, "active_count", lambda: 1)

    together = read_dumps([*paths, tmp_path / "comm_lib_trace_rank_9"])

    assert verdicts(together) == verdicts(alone) == [("DD101", (3,), 57)]
    assert [trouble.rank for trouble in together.troubles] == [trouble.rank for trouble in alone.troubles] == [9]
    for rank, log in alone.ranks.items():
        calls = [[log.call(row) for row in one.calls] for one in (log, together.ranks[rank])]
        assert calls[0] == calls[1]


def test_ranks_that_did_the_same_share_all_columns_but_the_times(tmp_path: Path) -> None:
    """10,240 dumps of 2,000 entries are 2.3 GB of records where every rank has its own."""
    logs = read_any(write(tmp_path, skipped(1, 3))).ranks

    for name in ("op", "number", "prefix", "site"):
        assert logs[0].calls[name] is logs[2].calls[name]
        assert logs[0].calls[name] is not logs[1].calls[name]
    assert logs[0].calls["entered_ns"] is not logs[2].calls["entered_ns"]


def test_shared_columns_are_read_like_records(tmp_path: Path) -> None:
    shared = read_any(write(tmp_path, skipped(1, 3))).ranks[0].calls
    records = np.asarray(shared)
    late = records["number"] > 3

    assert records.dtype == shared.dtype
    assert [int(row["prefix"]) for row in shared] == records["prefix"].tolist()
    assert np.asarray(shared[-3:]).tolist() == records[-3:].tolist()
    assert shared[late].tolist() == records[late].tolist()
    assert shared[-1]["seq"] == records[-1]["seq"]
    with pytest.raises(IndexError):
        shared[len(shared)]


def test_a_reading_process_that_is_killed_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = list(write(tmp_path, skipped(3, 9)).iterdir())
    monkeypatch.setattr(reading, "DUMPS_PER_PROCESS", 2)
    monkeypatch.setattr(reading.os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr(reading.threading, "active_count", lambda: 1)
    monkeypatch.setattr(reading, "read_dump", lambda path: os.kill(os.getpid(), signal.SIGKILL))

    with pytest.raises(UnreadableRecording, match="was killed"):
        read_dumps(paths)


@pytest.mark.parametrize("lost", range(1, 4))
def test_without_the_dump_of_an_innocent_rank_the_verdict_is_the_same(tmp_path: Path, lost: int) -> None:
    dumps = skipped(0, 4)
    del dumps[lost]

    recording = read_any(write(tmp_path, dumps))

    assert recording.missing == (lost,)
    assert verdicts(recording) == [("DD101", (0,), 57)]


def test_without_the_dump_of_the_culprit_nobody_else_is_accused(tmp_path: Path) -> None:
    dumps = skipped(2, 4)
    del dumps[2]

    assert verdicts(read_any(write(tmp_path, dumps))) == []


def test_a_job_that_went_well_gives_no_finding(tmp_path: Path) -> None:
    entries = [entry(number) for number in range(1, 20)]

    assert verdicts(read_any(write(tmp_path, {0: dump(entries), 1: dump(entries)}))) == []


def test_rings_that_have_forgotten_different_numbers_are_compared_where_both_remember(tmp_path: Path) -> None:
    entries = [entry(number) for number in range(1, 40)]
    recording = read_any(write(tmp_path, {0: dump(entries[10:]), 1: dump(entries[17:])}))

    calls = [log.calls for log in recording.ranks.values()]
    assert [int(rows["number"][0]) for rows in calls] == [11, 18]
    assert calls[0]["prefix"][-1] == calls[1]["prefix"][-1]
    assert [log.lost["calls"] for log in recording.ranks.values()] == [10, 17]
    assert verdicts(recording) == []


def test_sends_and_receives_carry_their_peer_as_a_global_rank(tmp_path: Path) -> None:
    pair = {"is_p2p": True, "process_group": ("pp", "stage"), "collective_seq_id": 0}
    config = {"pp": {"name": "pp", "desc": "stage", "ranks": "[4, 6]"}}
    mine = dump([entry(1, "nccl:send 0->1", **pair), entry(2, "nccl:recv 0<-1", **pair)], pg_config=config)
    recording = read_any(write(tmp_path, {4: mine}))

    calls = [recording.ranks[4].call(row) for row in recording.ranks[4].calls]
    assert [(c.op, c.root, c.number, c.group) for c in calls] == [(Op.SEND, 6, 1, "pp"), (Op.RECV, 6, 1, "pp")]
    assert recording.world_size == 7


def test_what_ddp_issues_from_cpp_and_what_objects_are_made_of_is_marked(tmp_path: Path) -> None:
    native = entry(1, frames=[{"name": "backward", "filename": "/v/site-packages/torch/_tensor.py", "line": 9},
                              {"name": "step", "filename": "/job/train.py", "line": 44}])  # fmt: skip
    gathered = entry(2, "nccl:all_gather")
    gathered["frames"].insert(
        1, {"name": "all_gather_object", "filename": "/v/torch/distributed/distributed_c10d.py", "line": 1}
    )
    recording = read_any(write(tmp_path, {0: dump([native, gathered], "[0]")}))

    calls = [recording.ranks[0].call(row) for row in recording.ranks[0].calls]
    assert [call.flags for call in calls] == [CallFlag.NATIVE, CallFlag.OBJECT]
    assert calls[0].site.line == 44


def test_torchcomms_dumps_and_numbers_written_as_text_are_understood(tmp_path: Path) -> None:
    words = entry(1, "torchcomms:all_gather_single", process_group=["world", "torchcomm"], time_created_ns=str(START))
    content = dump([words], "[0, 1]", pg_config={"world": {"name": "world", "desc": "torchcomm", "ranks": "[0, 1]"}})
    recording = read_any(write(tmp_path, {0: content, 1: content}, "rank_", as_json=True))

    call = recording.ranks[1].call(recording.ranks[1].calls[0])
    assert (call.op, call.group, call.entered_ns) == (Op.ALL_GATHER_INTO_TENSOR, "world", START)
    assert recording.ranks[1].group_list()[0].ranks == (0, 1)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3), ("comm_lib_trace_rank_12", 12), ("rank_0", 0), ("gpu7-node2.nccl_trace_rank_5", 5),
        ("node17_rank_4.json", 4), ("dump.12.pkl", 12), ("rank0_fr.json", 0),
        ("rank7_2026.json", 7), ("local_rank_1_global_rank_9.bin", 9), ("README.md", None), ("trace", None),
    ],
)  # fmt: skip
def test_the_rank_is_the_number_behind_the_word_or_the_last_of_the_name(name: str, rank: int | None) -> None:
    assert rank_in(name) == rank


def test_dumps_in_one_folder_per_host_are_found(tmp_path: Path) -> None:
    for rank, content in skipped(1, 2).items():
        folder = tmp_path / f"host{rank}"
        folder.mkdir()
        write(folder, {rank: content}, f"host{rank}_nccl_trace_rank_")

    assert sorted(read_any(tmp_path).ranks) == [0, 1]


class Evil:
    """A pickle of this runs a command when it is loaded without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_a_pickle_that_wants_to_run_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    proof = tmp_path / "it-ran"
    bad = write(tmp_path, {0: dump([entry(1)])}) / "comm_lib_trace_rank_0"
    bad.write_bytes(pickle.dumps({"entries": [Evil(proof)]}, protocol=2))

    with pytest.raises(UnreadableRecording, match=r"it asks for posix\.system"):
        read_dump(bad)
    assert not proof.exists()


@pytest.mark.parametrize(
    "opcode",
    [b"\x80\x02cos\nsystem\n.", b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"\x80\x02Pfoo\n.", b"\x80\x02\x82\x01."],
)
def test_every_way_to_name_a_class_is_refused(tmp_path: Path, opcode: bytes) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(opcode)

    with pytest.raises(UnreadableRecording):
        read_dump(path)


def test_a_torn_dump_is_a_trouble_and_the_others_are_examined(tmp_path: Path) -> None:
    write(tmp_path, skipped(1, 4))
    whole = (tmp_path / "comm_lib_trace_rank_3").read_bytes()
    (tmp_path / "comm_lib_trace_rank_3").write_bytes(whole[: len(whole) // 2])

    recording = read_any(tmp_path)

    assert sorted(recording.ranks) == [0, 1, 2]
    assert [trouble.rank for trouble in recording.troubles] == [3]
    assert verdicts(recording) == [("DD101", (1,), 57)]


@pytest.mark.parametrize("seed", range(40))
def test_garbage_is_read_or_refused_and_never_crashes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    good = bytearray(pickle.dumps(dump([entry(n) for n in range(1, 4)]), protocol=2))
    for _ in range(rng.randint(1, 8)):
        good[rng.randrange(2, len(good))] = rng.randrange(256)
    path = tmp_path / "rank_0"
    path.write_bytes(bytes(good))

    with suppress(UnreadableRecording):
        assert sorted(read_dumps([path]).ranks) == [0]


def test_of_two_dumps_of_one_rank_the_later_one_is_taken(tmp_path: Path) -> None:
    early, late = dump([entry(1)], "[0]"), dump([entry(1), entry(2)], "[0]")
    write(tmp_path, {0: late}, "a_rank_")
    write(tmp_path, {0: early}, "b_rank_")

    recording = read_any(tmp_path)

    assert len(recording.ranks[0].calls) == 2
    assert "b_rank_* (rank 0) is of another start, job or moment, and was left aside" in recording.troubles[0].what


def test_an_empty_folder_is_nothing_to_inspect(tmp_path: Path) -> None:
    with pytest.raises(NothingToInspect):
        read_any(tmp_path)


def test_the_frame_around_a_batch_of_sends_is_no_collective(tmp_path: Path) -> None:
    """NCCL notes `coalesced` on the ranks of a pipeline that exchange something, under the number of their last collective."""
    dumps = {}
    for rank in range(2):
        entries = [entry(1, "nccl:all_reduce")]
        if rank == 0:
            entries += [entry(2, "nccl:send 0->1") | {"is_p2p": True, "collective_seq_id": 1}]
            entries += [entry(3, "nccl:coalesced") | {"is_p2p": True, "collective_seq_id": 1}]
        entries += [entry(4, "nccl:all_reduce") | {"collective_seq_id": 2}]
        dumps[rank] = dump(entries)

    recording = read_any(write(tmp_path, dumps))

    assert [call.op for call in map(recording.ranks[0].call, recording.ranks[0].calls)] == [
        Op.ALL_REDUCE, Op.SEND, Op.ALL_REDUCE,
    ]  # fmt: skip
    assert verdicts(recording) == []


def test_names_of_operations_are_known_with_and_without_backend() -> None:
    assert [
        op_of(name) for name in ("nccl:_all_gather_base", "gloo:all_reduce", "nccl:recv 1<-0", "nccl:new_thing")
    ] == [
        Op.ALL_GATHER_INTO_TENSOR,
        Op.ALL_REDUCE,
        Op.RECV,
        Op.UNKNOWN,
    ]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nccl2:all_reduce", Op.ALL_REDUCE),
        ("nccl-lazy:_all_gather_base", Op.ALL_GATHER_INTO_TENSOR),
        ("gloo:recv 3<-?", Op.RECV_ANY),
        ("nccl2:recv 3<-0", Op.RECV),
        ("c10d:all_to_all_single", Op.ALL_TO_ALL_SINGLE),
        ("gloo:sparse_all_reduce", Op.ALL_REDUCE),
        ("my::backend:gather_single", Op.GATHER),
        ("nccl:split", Op.UNKNOWN),
    ],
)
def test_every_backend_of_torch_2_15_is_understood(name: str, op: Op) -> None:
    assert op_of(name) is op


@pytest.mark.job
def test_reading_needs_no_torch() -> None:
    folder = str(GOLDEN / "gloo-torch-2.15-skip")
    code = (
        "from distdoctor.recording.open import read_any; from pathlib import Path; import sys\n"
        f"read_any(Path({folder!r}))\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
