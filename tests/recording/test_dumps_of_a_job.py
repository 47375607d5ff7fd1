"""Dumps of jobs that stand still: the culprits are named, nobody else is, and what hangs is never called healthy."""

from __future__ import annotations

import json
import os
import pickle
import random
import time
from pathlib import Path
from typing import Any

import pytest
from inner_loop import drawn
from sick import PLUGINS

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, POSSIBLE
from distdoctor.diagnosis.hang.device_progress import DeviceProgress
from distdoctor.recording.flight.backend_state import BackendState, GroupState, Pending
from distdoctor.recording.flight.dumps import dump_of, read_dump
from distdoctor.recording.flight.entries import peer_of
from distdoctor.recording.flight.rows import recording_of
from distdoctor.recording.open import read_any
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import Op
from tests.recording.nccl_job import (
    ADDS,
    DEVICE_STOPS,
    HALF_PAIR,
    HOST_STOPS,
    OTHER_SIZE,
    SILENT_DEVICE,
    SKIPS,
    Fault,
    Job,
    Shape,
)

CHECKS = [check for check in PLUGINS.checks.values() if check.code.startswith("DD1")]
REAL = Path(os.environ.get("DISTDOCTOR_EVIDENCE", "/nowhere"))
WRITTEN = 1_758_001_000_000_000_000  # the files, 1,000 s after the job began: it stood for as long as torch lets it
COPIED = WRITTEN + 86_400_000_000_000  # a day later, by cp without -p
FAULTS = (HOST_STOPS, DEVICE_STOPS, SILENT_DEVICE, SKIPS, OTHER_SIZE, HALF_PAIR)


def diagnosed(recording: Recording) -> Diagnosis:
    return examine(recording, CHECKS)


def some_job(seed: int) -> tuple[str, list[int], Job, dict[str, Any]]:
    """A job of some shape with some fault, and some way of writing its dumps."""
    dice = random.Random(seed)
    shape = Shape(
        dice.choice([2, 4]), dice.choice([2, 3, 4]), dice.choice([1, 2, 3]), run_ahead=dice.choice([6, 24, 100])
    )
    what = dice.choice(FAULTS)
    if what == HALF_PAIR and shape.pipeline == 1:
        what = HOST_STOPS
    several = dice.choice([1, 1, 2]) if what in (HOST_STOPS, SILENT_DEVICE) else 1
    ranks, at = dice.sample(range(shape.world), several), dice.randrange(200)
    how: dict[str, Any] = {
        "counters": dice.random() < 0.8,
        "starts": dice.random() < 0.5,
        "frames": dice.random() < 0.5,
    }
    how["active_only"] = how["counters"] and dice.random() < 0.6
    return what, ranks, Job(shape, [Fault(what, rank, at) for rank in ranks], seed), how


def recorded(
    job: Job, how: dict[str, Any], lost: tuple[int, ...] = (), order: int = 0, written: int = WRITTEN
) -> Recording:
    ranks = [rank for rank in range(job.shape.world) if rank not in lost]
    random.Random(order).shuffle(ranks)
    return recording_of(dump_of(job.dump(rank, **how), rank, f"dump {rank}", written) for rank in ranks)


@pytest.mark.parametrize("seed", drawn(60))
def test_a_finding_names_a_culprit_and_a_stuck_job_is_never_healthy(seed: int) -> None:
    what, culprits, job, how = some_job(seed)
    diagnosis = diagnosed(recorded(job, how))

    assert job.is_stuck
    assert not diagnosis.healthy
    assert diagnosis.findings
    for finding in diagnosis.findings:
        assert set(finding.ranks) & set(culprits), (what, finding.code, finding.title)
    if what == HOST_STOPS:
        assert {finding.code for finding in diagnosis.findings} == {"DD116"}
        assert {rank for finding in diagnosis.findings for rank in finding.ranks} <= set(culprits)


@pytest.mark.parametrize("seed", drawn(30, since=100))
def test_lost_dumps_make_the_verdict_poorer_and_never_wrong(seed: int) -> None:
    what, culprits, job, how = some_job(seed)
    lost = tuple(random.Random(seed).sample(range(job.shape.world), 2))
    diagnosis = diagnosed(recorded(job, how, lost))

    assert not diagnosis.healthy
    assert any("left no dump" in words for words in diagnosis.left_open)
    for finding in diagnosis.findings:
        assert set(finding.ranks) & set(culprits), (what, finding.code, finding.title)


@pytest.mark.parametrize("seed", drawn(12, since=200))
def test_the_order_in_which_dumps_come_changes_nothing(seed: int) -> None:
    _, _, job, how = some_job(seed)
    first = diagnosed(recorded(job, how))

    assert [diagnosed(recorded(job, how, order=order)).findings for order in (1, 2)] == [first.findings] * 2


@pytest.mark.parametrize("active_only", [True, False])
def test_a_job_that_has_done_all_it_enqueued_is_healthy(active_only: bool) -> None:
    job = Job(Shape(2, 2, 2))
    diagnosis = diagnosed(recorded(job, {"active_only": active_only}))

    assert not job.is_stuck
    assert diagnosis.healthy


def test_ranks_that_are_missed_in_one_call_are_one_finding() -> None:
    job = Job(Shape(4, 2, 1), [Fault(HOST_STOPS, rank, 20) for rank in (4, 5, 6, 7)])
    (finding,) = diagnosed(recorded(job, {})).findings

    assert (finding.code, finding.ranks) == ("DD116", (4, 5, 6, 7))
    assert "their devices have nothing left to do: the others wait for their hosts" in finding.title


def test_the_device_is_named_that_has_not_completed_what_its_peers_have() -> None:
    job = Job(Shape(2, 2, 2), [Fault(SILENT_DEVICE, 1, 20), Fault(SILENT_DEVICE, 6, 20)])
    (finding,) = diagnosed(recorded(job, {})).findings

    assert (finding.code, finding.ranks) == ("DD122", (1, 6))


def test_a_device_that_alone_has_not_started_is_named_where_starts_are_noted() -> None:
    job = Job(Shape(2, 4, 1), [Fault(DEVICE_STOPS, 5, 9)])
    (finding,) = diagnosed(recorded(job, {"starts": True})).findings

    assert (finding.code, finding.ranks) == ("DD122", (5,))
    assert "has not started it" in finding.title


def test_dumps_of_a_moment_at_which_calls_are_under_way_are_unknown_and_not_healthy(tmp_path: Path) -> None:
    job = Job(Shape(2, 2, 1), [Fault(HOST_STOPS, 0, 0)])
    dumps = {rank: job.dump(rank) for rank in range(4) if rank}
    for rank, content in dumps.items():
        (tmp_path / f"dump_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    diagnosis = diagnosed(read_any(tmp_path))

    assert diagnosis.left_open[0] == "rank 0 of 4 left no dump"
    assert not diagnosis.healthy


def test_sends_of_a_batch_are_complete_when_the_batch_is(tmp_path: Path) -> None:
    """torch keeps one event for a batch: its sends and receives stay `scheduled` for ever."""
    job = Job(Shape(2, 1, 2))
    for rank in range(4):
        content = job.dump(rank, active_only=False)
        for entry in list(content["entries"]):
            if entry["is_p2p"]:
                frame = dict(entry, profiling_name="nccl:coalesced")
                entry |= {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
                content["entries"].append(frame)
        for number, entry in enumerate(content["entries"]):
            entry["record_id"] = number
        (tmp_path / f"dump_{rank}").write_text(json.dumps(content))

    assert diagnosed(read_any(tmp_path)).healthy


def test_a_group_of_ten_thousand_ranks_has_all_its_members(tmp_path: Path) -> None:
    members = str(list(range(10_240)))
    content = {
        "entries": [],
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
        "pg_status": {},
    }
    paths = [tmp_path / f"dump_{rank}" for rank in (0, 10_239)]
    for path in paths:
        path.write_bytes(pickle.dumps(content, protocol=2))
    first, last = (read_dump(path).groups["0"] for path in paths)

    assert len(first) == 10_240
    assert first is last


@pytest.mark.parametrize(("mode", "code"), [("stop", "DD116"), ("skip", "DD101")])
def test_a_rank_that_stops_or_goes_on_in_another_group_is_found_without_python_frames(mode: str, code: str) -> None:
    """What C++ issues (DDP's reducer, FSDP) has no frame of distributed_c10d."""
    dumps = [dump_of(of_two_groups(rank, mode), rank, f"dump {rank}", 1_758_001_000_000_000_000) for rank in range(4)]

    assert [(f.code, f.ranks) for f in diagnosed(recording_of(dumps)).findings] == [(code, (2,))]


def of_two_groups(rank: int, mode: str) -> dict[str, Any]:
    """Forty calls, every fourth on all ranks, the others on pairs; rank 2 stops at the last four, or leaves out the last."""
    entries: list[dict[str, Any]] = []
    count = {"0": 0, "tp": 0}
    for number in range(40):
        kind = "0" if number % 4 == 3 else "tp"
        if rank == 2 and (number >= 36 if mode == "stop" else number == 39):
            continue
        count[kind] += 1
        done = number < 36
        name = "0" if kind == "0" else f"tp{rank // 2}"
        at = 1_758_000_000_000_000_000 + number * 1_000_000
        entries.append({
            "record_id": len(entries), "pg_id": 0 if kind == "0" else 1 + rank // 2, "process_group": (name, f"mesh_{kind}"),
            "collective_seq_id": count[kind], "p2p_seq_id": 0, "op_id": count[kind], "profiling_name": "nccl:all_reduce",
            "time_created_ns": at, "input_sizes": [[16]], "input_dtypes": ["Float"], "output_sizes": [[16]],
            "output_dtypes": ["Float"], "state": "completed" if done else "scheduled", "retired": done, "is_p2p": False,
            "time_discovered_completed_ns": at + 1000 if done else None, "time_discovered_started_ns": None,
            "frames": [{"name": "step", "filename": "/job/train.py", "line": 10 if kind == "0" else 20}],
        })  # fmt: skip
    config = {"0": {"name": "0", "desc": "mesh_0", "ranks": "[0, 1, 2, 3]"}}
    pair = str([rank // 2 * 2, rank // 2 * 2 + 1])
    config[f"tp{rank // 2}"] = {"name": f"tp{rank // 2}", "desc": "mesh_tp", "ranks": pair}
    return {"version": "2.10", "entries": entries, "pg_config": config, "pg_status": {}}


def test_a_skip_among_calls_that_take_turns_is_no_swap() -> None:
    """Behind the skip the host goes on: all_gather and reduce_scatter alternate, and only the calls behind it tell."""
    job = Job(Shape(4, 2, 1, steps=4), [Fault(SKIPS, 3, 35)])
    (finding,) = diagnosed(recorded(job, {"active_only": False, "frames": True})).findings

    assert (finding.code, finding.ranks) == ("DD101", (3,))


def test_members_that_differ_from_rank_to_rank_are_the_cause_of_what_does_not_complete() -> None:
    job = Job(Shape(2, 4, 1), [Fault(HOST_STOPS, 3, 30)])
    dumps = {rank: job.dump(rank, active_only=False) for rank in range(8)}
    expert = next(name for name, (words, _) in job.shape.groups().items() if words.startswith("EXPERT"))
    dumps[5]["pg_config"][expert]["ranks"] = "[1, 5]"
    written = 1_758_001_000_000_000_000
    (finding,) = diagnosed(
        recording_of(dump_of(dump, rank, f"dump {rank}", written) for rank, dump in dumps.items())
    ).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD119", (5,), LIKELY)


@pytest.mark.parametrize("frames", [True, False])
def test_the_few_that_call_what_most_of_the_group_went_past_are_the_odd_ones(frames: bool) -> None:
    """One tensor parallel group calls on everybody's group. Any one of the others is no more at fault than the rest of them."""
    odd = (4, 5, 6, 7)
    job = Job(Shape(4, 4, 1, steps=4, run_ahead=6), [Fault(ADDS, rank, 21) for rank in odd])
    (finding,) = diagnosed(recorded(job, {"frames": frames, "active_only": not frames})).findings

    assert (finding.code, finding.ranks) == ("DD101", odd)
    assert "of the default group where the others called" in finding.title


def test_of_a_ring_the_rank_that_left_out_a_call_is_named() -> None:
    """Hosts run on behind their devices: all of them have issued everything else, and the devices wait for each other."""
    job = Job(Shape(1, 4, 2, steps=4, run_ahead=100), [Fault(SKIPS, 3, 40)])
    for finding in diagnosed(recorded(job, {"active_only": True})).findings:
        assert finding.code == "DD101"
        assert finding.ranks == (3,)


@pytest.mark.parametrize("counted", ["p2p_seq_id", "collective_seq_id"])
def test_a_batch_is_known_by_whichever_counter_it_raises(counted: str) -> None:
    """torch keeps the event of a whole batch only, and which counter a batch raises depends on its version."""
    dumps = {}
    for rank in range(2):
        entries = []
        for number in range(3):
            for name in (
                f"{'send' if rank == 0 else 'recv'} {rank}{'->' if rank == 0 else '<-'}{1 - rank}",
                "coalesced",
            ):
                done = name == "coalesced"
                entries.append({
                    "record_id": len(entries), "pg_id": 0, "process_group": ("0", "pp"), "profiling_name": f"nccl:{name}",
                    "collective_seq_id": 0, "p2p_seq_id": 0, counted: number + 1, "op_id": len(entries), "is_p2p": True,
                    "time_created_ns": 1_758_000_000_000_000_000 + number, "input_sizes": [[16]], "input_dtypes": ["Float"],
                    "output_sizes": [[16]], "output_dtypes": ["Float"], "retired": done,
                    "state": "completed" if done else "scheduled", "time_discovered_completed_ns": None,
                })  # fmt: skip
        config = {"0": {"name": "0", "desc": "pp", "ranks": "[0, 1]"}}
        dumps[rank] = {"version": "2.10", "entries": entries, "pg_config": config, "pg_status": {}}
    recording = recording_of(dump_of(dump, rank, f"dump {rank}", 1) for rank, dump in dumps.items())

    assert not DeviceProgress.of(recording).fronts


def moving(seed: int, spread: int, written: int = WRITTEN, **how: Any) -> Recording:
    """The dumps of a healthy job, each rank's written at a moment of its own within so many ticks of one in the middle."""
    dice = random.Random(seed)
    job = Job(Shape(dice.choice([2, 4]), dice.choice([2, 3]), dice.choice([1, 2]), steps=6), seed=seed)
    middle = dice.randrange(job.now // 3, job.now * 2 // 3)
    moments = [middle + dice.randrange(-spread, spread + 1) for _ in range(job.shape.world)]
    return recording_of(
        dump_of(job.dump(rank, moment, **how), rank, f"dump {rank}", written) for rank, moment in enumerate(moments)
    )


@pytest.mark.parametrize("seed", drawn(30, since=300))
def test_dumps_of_a_job_that_moves_prove_nothing_against_anybody(seed: int) -> None:
    dice = random.Random(seed)
    active_only, spread = dice.random() < 0.5, dice.choice([0, 10, 100])
    diagnosis = diagnosed(moving(seed, spread, active_only=active_only))

    assert all(finding.confidence is not CERTAIN for finding in diagnosis.findings)
    assert not diagnosis.healthy


@pytest.mark.parametrize("seed", drawn(30, since=300))
def test_nobody_is_likely_at_fault_in_files_that_are_younger_than_any_wait(seed: int) -> None:
    dice = random.Random(seed)
    active_only, spread = dice.random() < 0.5, dice.choice([0, 10, 100])
    diagnosis = diagnosed(moving(seed, spread, COPIED, active_only=active_only))

    assert {finding.confidence for finding in diagnosis.findings} <= {POSSIBLE}


def test_the_times_of_copies_do_not_show_that_a_job_stood_still() -> None:
    job = Job(Shape(2, 2, 2), [Fault(HOST_STOPS, 5, 20)])
    (dated,) = diagnosed(recorded(job, {})).findings
    (copied,) = diagnosed(recorded(job, {}, written=COPIED)).findings

    assert (dated.code, dated.ranks, dated.confidence) == ("DD116", (5,), LIKELY)
    assert (copied.code, copied.ranks, copied.confidence) == ("DD116", (5,), POSSIBLE)
    assert "the files' times are those of a copy" in copied.why
    assert "copy" not in dated.why


@pytest.mark.parametrize("active_only", [True, False])
def test_a_call_that_needs_everybody_shows_which_dumps_are_older(active_only: bool) -> None:
    diagnosis = diagnosed(moving(7, 300, active_only=active_only))

    assert diagnosis.findings == ()
    assert any("the dumps are of different moments of a job that moved on" in words for words in diagnosis.left_open)


def test_ranks_that_each_end_at_another_call_are_of_different_moments() -> None:
    states = {
        rank: BackendState(
            rank, (GroupState("0", "default_pg", 190, 190, done, (Pending("all_reduce", done + 1, "scheduled"),)),)
        )
        for rank, done in enumerate([185, 172, 179, 160])
    }
    progress = DeviceProgress(states, tuple(range(4)))

    assert progress.moved_on == "of default_pg the ranks have completed up to 4 different calls, from #160 to #185"
    assert not progress.stopped
    assert not progress.jams


def test_a_dump_left_over_from_before_is_left_aside_and_the_others_are_judged() -> None:
    job = Job(Shape(2, 2, 1, steps=6), [Fault(HOST_STOPS, 2, 60)])
    dumps = {rank: job.dump(rank, active_only=False) for rank in range(4)}
    old = job.dump(1, job.now // 3, active_only=False)
    for entry in old["entries"]:
        for name in ("time_created_ns", "time_discovered_completed_ns"):
            entry[name] = entry[name] and entry[name] - 3_600_000_000_000
    written = 1_758_001_000_000_000_000
    diagnosis = diagnosed(
        recording_of(dump_of({**dumps, 1: old}[rank], rank, f"dump {rank}", written) for rank in range(4))
    )

    assert {(finding.code, finding.ranks) for finding in diagnosis.findings} <= {("DD116", (2,))}
    assert "rank 1 of 4 left no dump" in diagnosis.left_open


def test_dumps_of_an_earlier_start_with_more_ranks_are_left_aside() -> None:
    """An elastic job starts again with fewer ranks, and writes over the files of those only."""
    before, now = Job(Shape(2, 4, 1, steps=6), [Fault(HOST_STOPS, 5, 60)]), Job(Shape(2, 2, 1, steps=6))
    dumps = {rank: before.dump(rank, active_only=False) for rank in range(8)}
    for dump in dumps.values():
        for entry in dump["entries"]:
            for name in ("time_created_ns", "time_discovered_completed_ns"):
                entry[name] = entry[name] and entry[name] - 3_600_000_000_000
    dumps |= {rank: now.dump(rank, active_only=False) for rank in range(4)}
    written = 1_758_001_000_000_000_000
    recording = recording_of(dump_of(dump, rank, f"dump {rank}", written) for rank, dump in dumps.items())

    assert sorted(recording.ranks) == [0, 1, 2, 3]
    assert recording.world_size == 4
    assert "it counts 8 ranks, and later ones 4" in recording.troubles[0].what
    assert diagnosed(recording).findings == ()


def test_swapped_calls_are_as_sure_however_soon_the_dumps_were_written() -> None:
    """What was called is as it was; only who waits for whom depends on the moment."""
    began = 1_758_000_000_000_000_000
    dumps = {}
    for rank in range(3):
        lines = [10, 20] * 20
        if rank == 1:
            lines[20:22] = [20, 10]
        entries = [
            {
                "record_id": at, "pg_id": 0, "process_group": ("0", "default_pg"), "profiling_name": "nccl:all_reduce",
                "collective_seq_id": at + 1, "p2p_seq_id": 0, "op_id": at, "is_p2p": False, "time_created_ns": began + at,
                "input_sizes": [[16]], "input_dtypes": ["Float"], "output_sizes": [[16]], "output_dtypes": ["Float"],
                "retired": True, "state": "completed", "time_discovered_completed_ns": began + at + 1,
                "frames": [{"name": "step", "filename": "/job/train.py", "line": line}],
            }
            for at, line in enumerate(lines)
        ]  # fmt: skip
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
        dumps[rank] = {"version": "2.10", "entries": entries, "pg_config": config, "pg_status": {}}
    for later in (1, 3_600_000_000_000):
        parts = (dump_of(dump, rank, f"dump {rank}", began + 100 + later) for rank, dump in dumps.items())
        (finding,) = diagnosed(recording_of(parts)).findings

        assert (finding.code, finding.ranks, finding.confidence) == ("DD107", (1,), LIKELY)


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_of_which_both_ends_are_there_is_no_ring(count: int) -> None:
    """Each sends to the other and receives from it in one batch: nobody has to come first, it is the link that stands."""
    dumps = {}
    for rank in range(2 * count):
        pair, place = rank // 2, rank % 2
        names = [f"send {place}->{1 - place}", f"recv {place}<-{1 - place}", "coalesced"]
        entries = [
            {
                "record_id": at, "pg_id": 0, "process_group": (f"{pair}", "PIPELINE"), "profiling_name": f"nccl:{name}",
                "collective_seq_id": 0, "p2p_seq_id": 1, "op_id": at, "is_p2p": True, "time_created_ns": 1_758_000_000,
                "input_sizes": [[16]], "input_dtypes": ["Float"], "output_sizes": [[16]], "output_dtypes": ["Float"],
                "retired": False, "state": "scheduled", "time_discovered_completed_ns": None,
            }
            for at, name in enumerate(names)
        ]  # fmt: skip
        config = {f"{pair}": {"name": f"{pair}", "desc": "PIPELINE", "ranks": f"[{2 * pair}, {2 * pair + 1}]"}}
        dumps[rank] = {"version": "2.10", "entries": entries, "pg_config": config, "pg_status": {}}
    recording = recording_of(dump_of(dump, rank, f"dump {rank}", 1) for rank, dump in dumps.items())
    (finding,) = diagnosed(recording).findings

    assert (finding.code, finding.ranks) == ("DD122", tuple(range(2 * count)))


@pytest.mark.parametrize(
    "name", ["send 0->70", "send 0->9999999999", f"send 0->{'9' * 5000}", "send", "recv", f"send {'9' * 9000}"]
)
def test_a_send_whose_other_end_nobody_knows_is_pending_and_accuses_nobody(name: str) -> None:
    """Not as if it were a collective that the others have to come to."""
    dumps = {}
    for rank in range(2):
        entry = {
            "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "profiling_name": f"nccl:{name}",
            "collective_seq_id": 1, "p2p_seq_id": 1, "op_id": 1, "is_p2p": True, "time_created_ns": 1_758_000_000,
            "input_sizes": [[16]], "input_dtypes": ["Float"], "output_sizes": [[16]], "output_dtypes": ["Float"],
            "retired": False, "state": "scheduled", "time_discovered_completed_ns": None,
        }  # fmt: skip
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        dumps[rank] = {"version": "2.10", "entries": [entry], "pg_config": config, "pg_status": {}}
    recording = recording_of(dump_of(dump, rank, f"dump {rank}", 1) for rank, dump in dumps.items())
    diagnosis = diagnosed(recording)

    assert diagnosis.findings == ()
    assert not diagnosis.healthy
    assert [one for one in diagnosis.not_examined if "the check failed" in one.reason] == []


def test_the_other_end_of_a_send_is_found_in_time_that_grows_with_its_name() -> None:
    since = time.process_time()

    assert [peer_of(name * 2000, Op.SEND) for name in ("9", "1 ", "1 -", "1->")] == [-1, -1, -1, 1]
    assert time.process_time() - since < 0.1


@pytest.mark.skipif(not REAL.is_dir(), reason="DISTDOCTOR_EVIDENCE names no folder of real NCCL dumps")
@pytest.mark.parametrize(
    ("name", "code", "culprits"), [("gpu_error_1st", "DD122", {12, 14}), ("lock_gil_2nd", "DD116", {10, 15})]
)
def test_the_culprits_of_real_nccl_jobs_are_named_and_nobody_else(name: str, code: str, culprits: set[int]) -> None:
    diagnosis = diagnosed(read_any(REAL / name))

    assert {finding.code for finding in diagnosis.findings} == {code}
    assert {rank for finding in diagnosis.findings for rank in finding.ranks} == culprits


@pytest.mark.skipif(not REAL.is_dir(), reason="DISTDOCTOR_EVIDENCE names no folder of real NCCL dumps")
@pytest.mark.parametrize(("name", "culprits"), [("gpu_error_1st", {12, 14}), ("lock_gil_2nd", {10, 15})])
def test_real_dumps_with_one_lost_never_name_an_innocent(name: str, culprits: set[int], tmp_path: Path) -> None:
    for lost in range(16):
        folder = tmp_path / str(lost)
        folder.mkdir()
        for path in (REAL / name).iterdir():
            if path.name != f"_dump_{lost}":
                (folder / path.name).symlink_to(path)
        progress = DeviceProgress.of(read_any(folder))
        named = {one.rank for one in progress.absences} | set(progress.stopped)
        assert named == culprits - {lost}
