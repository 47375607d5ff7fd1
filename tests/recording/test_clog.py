"""torchcomms' clog files, written after its documented format, are read like dumps: who skipped, who is stuck, what is open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from commands import Said
from sick import PLUGINS

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.errors import UnreadableRecording
from distdoctor.recording.flight import clog
from distdoctor.recording.open import read_any
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import Op, ReduceOp

REDUCE = "all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum|async_op=f|comm=world"
AVERAGE = REDUCE.replace("sum", "avg")
WIDER = REDUCE.replace("1024", "2048")
BARRIER = "barrier|async_op=f|comm=world"
WORLD = "new_comm|comm=world|rank={rank}|world_size={ranks}"


class Clog:
    """The clog file of one rank. `call` issues, `end` lets the device end what was issued first of a kind."""

    def __init__(self, rank: int, ranks: int, *, began: float = 1714234567.890, head: Iterable[str] = (WORLD,)) -> None:
        self.lines = [f"V|1|base_timestamp={began:.3f}", *(line.format(rank=rank, ranks=ranks) for line in head)]
        self.rank, self.now, self.works, self.kinds = rank, 0.0, 0, dict[str, int]()

    def _event(self, words: str) -> None:
        self.now += 0.001
        self.lines.append(f"{words}|+{self.now:.3f}")

    def call(self, signature: str, events: str = "SE", prefix: str = "") -> Clog:
        if signature not in self.kinds:
            self.kinds[signature] = len(self.kinds) + 1
            self.lines.append(f"C{self.kinds[signature]}|sig|{signature}")
        self.works += 1
        self._event(f"{prefix}C{self.kinds[signature]}|Q|work_id={self.works}")
        return self.goes_on(signature, events, prefix)

    def goes_on(self, signature: str, events: str, prefix: str = "") -> Clog:
        for event in events:
            self._event(f"{prefix}C{self.kinds[signature]}|{event}")
        return self

    def write(self, folder: Path) -> Path:
        path = folder / f"clog_{self.rank}.log"
        path.write_text("\n".join(self.lines) + "\n")
        return path


def job(ranks: int, steps: int = 5) -> list[Clog]:
    found = [Clog(rank, ranks) for rank in range(ranks)]
    for one in found:
        for _ in range(steps):
            one.call(REDUCE)
    return found


def read(folder: Path, job: Iterable[Clog]) -> Recording:
    for one in job:
        one.write(folder)
    return read_any(folder)


def diagnosed(recording: Recording) -> Diagnosis:
    found = PLUGINS
    return examine(recording, found.checks.values(), found.remedies)


def verdicts(recording: Recording) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.code, finding.ranks) for finding in diagnosed(recording).findings]


def test_a_job_whose_calls_are_all_complete_is_healthy(tmp_path: Path, say: Callable[..., Said]) -> None:
    recording = read(tmp_path, job(3))
    call = recording.ranks[1].call(recording.ranks[1].calls[4])
    assert (call.op, call.number, call.dtype, call.shape, call.reduce_op) == (
        Op.ALL_REDUCE, 5, "float32", "[1024]", ReduceOp.SUM
    )  # fmt: skip
    assert [(group.name, group.ranks) for group in recording.ranks[0].group_list()] == [("world", (0, 1, 2))]
    assert not verdicts(recording)
    assert say("examine", tmp_path).code == 0


def test_logs_that_come_by_the_standard_input_are_read_alike(tmp_path: Path, say: Callable[..., Said]) -> None:
    ranks = job(2)
    ranks[0].call(AVERAGE, "")
    ranks[1].call(WIDER, "")
    together = "".join(one.write(tmp_path).read_text() for one in ranks)
    here, by_input = say("examine", tmp_path), say("examine", "-", given=together)
    assert (here.code, here.out) == (by_input.code, by_input.out)
    assert "DD103" in by_input.out


def test_logs_in_a_store_are_read_alike(tmp_path: Path, say: Callable[..., Said]) -> None:
    for one in job(2):
        one.write(tmp_path)
    here, there = say("examine", tmp_path), say("examine", f"local://{tmp_path}")
    assert (here.code, here.out) == (there.code, there.out)


def test_a_rank_that_skips_a_call(tmp_path: Path, say: Callable[..., Said]) -> None:
    ranks = job(3)
    for one in ranks:
        if one.rank != 1:
            one.call(BARRIER)
        one.call(REDUCE, "S")
    assert verdicts(read(tmp_path, ranks))[0][1] == (1,)
    assert say("examine", tmp_path).code == 3


def test_a_rank_whose_host_stopped(tmp_path: Path) -> None:
    ranks = job(3)
    for one in (*ranks[:1], *ranks[2:]):
        one.call(REDUCE, "S")
    ranks[0].now = 60.0
    ranks[0].call(BARRIER, "")
    assert verdicts(read(tmp_path, ranks)) == [("DD116", (1,))]


@pytest.mark.parametrize(
    ("other", "code"),
    [
        (BARRIER, "DD102"),
        (WIDER, "DD103"),
        (REDUCE.replace("f32", "f64"), "DD104"),
        (AVERAGE, "DD105"),
    ],
)
def test_another_call_at_one_number(tmp_path: Path, other: str, code: str) -> None:
    ranks = job(3)
    for one in ranks:
        one.call(other if one.rank == 2 else REDUCE, "S")
    assert verdicts(read(tmp_path, ranks)) == [(code, (2,))]


def test_another_root(tmp_path: Path) -> None:
    ranks = job(3)
    for one in ranks:
        root = 2 if one.rank == 2 else 0
        one.call(f"broadcast|in_count=8|out_count=8|dtype=i64|root={root}|async_op=f|comm=world", "S")
    assert verdicts(read(tmp_path, ranks)) == [("DD106", (2,))]


def test_a_device_that_is_stuck(tmp_path: Path) -> None:
    ranks = job(4)
    for one in ranks:
        one.call(REDUCE, "S" if one.rank == 3 else "SE")
        one.call(REDUCE, "")
    assert verdicts(read(tmp_path, ranks)) == [("DD122", (3,))]


def test_a_part_of_a_split_is_known_by_its_members(tmp_path: Path) -> None:
    ranks = job(4)
    for one in ranks:
        members = "0,1" if one.rank < 2 else "2,3"
        one.lines.append(f"split|parent=world|child=tp|ranks={members}")
        send = "send" if one.rank == 2 else "recv"
        counts = "in_count=4|out_count=0" if send == "send" else "in_count=0|out_count=4"
        if one.rank >= 2:
            one.call(f"{send}|{counts}|dtype=f32|peer={3 - one.rank}|async_op=f|comm=tp")
        one.call(BARRIER.replace("world", "tp"), "S" if one.rank < 2 else "SE")
    recording = read(tmp_path, ranks)
    groups = {group.ranks for log in recording.ranks.values() for group in log.group_list()}
    assert groups == {(0, 1, 2, 3), (0, 1), (2, 3)}
    sent = [call for row in recording.ranks[2].calls if (call := recording.ranks[2].call(row)).op is Op.SEND]
    assert [(call.root, call.shape) for call in sent] == [(3, "[4]")]
    assert verdicts(recording) == [("DD122", (0, 1))]


@pytest.mark.parametrize("lost", ["a rank", "the end", "a replay", "the events of the device"])
def test_what_is_left_open_is_not_health(tmp_path: Path, say: Callable[..., Said], lost: str) -> None:
    ranks = job(3)
    if lost == "a rank":
        del ranks[2]
    elif lost == "the end":
        for one in ranks:
            one.call(REDUCE, "S")
    elif lost == "a replay":
        for one in ranks:
            one.call(REDUCE, "", "G42|").goes_on(REDUCE, "SE", "G42|R1|").goes_on(REDUCE, "S", "G42|R2|")
    else:
        for one in ranks:
            one.lines = [line for line in one.lines if "|S|" not in line and "|E|" not in line]
    read(tmp_path, ranks)
    said = say("examine", tmp_path, "--output-format", "json")
    assert said.code not in (0, 1), said
    content = json.loads(said.out)
    assert content["verdict"] != "healthy", content


def test_replays_that_ended_are_healthy(tmp_path: Path, say: Callable[..., Said]) -> None:
    ranks = job(2)
    for one in ranks:
        one.call(REDUCE, "SE", "G42|").goes_on(REDUCE, "SE", "G42|R1|")
    assert not verdicts(read(tmp_path, ranks))
    assert say("examine", tmp_path).code == 0


def test_hosts_alone_tell_who_is_behind(tmp_path: Path) -> None:
    """Without the events of the devices nobody is called stuck where all have issued the same."""
    ranks = job(3)
    for one in ranks:
        one.call(BARRIER if one.rank == 2 else REDUCE, "")
        one.lines = [line for line in one.lines if "|S|" not in line and "|E|" not in line]
    assert verdicts(read(tmp_path, ranks)) == [("DD102", (2,))]


def test_files_without_communicators_are_known_by_their_names(tmp_path: Path) -> None:
    ranks = [Clog(rank, 2, head=()).call(REDUCE) for rank in range(2)]
    assert sorted(read(tmp_path, ranks).ranks) == [0, 1]


def test_a_communicator_name_that_several_share_is_not_aligned(tmp_path: Path, say: Callable[..., Said]) -> None:
    pairs = [Clog(rank, 4, head=(WORLD, f"new_comm|comm=tp|rank={rank % 2}|world_size=2")) for rank in range(4)]
    for one in pairs:
        one.call(REDUCE)
        for _ in range(one.rank + 1):
            one.call(BARRIER.replace("world", "tp"))
    assert not verdicts(read(tmp_path, pairs))
    assert say("examine", tmp_path).code != 0


def test_a_file_that_died_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = job(1)[0].write(tmp_path)
    path.write_text(path.read_text() + "C1|Q|work_id=6|+0.0")
    assert len(read_any(path).ranks[0].calls) == 5


@pytest.mark.parametrize(
    "words",
    ["V|2|base_timestamp=1.000\n", "V|1|base_timestamp=x\n", "V|1|base_timestamp=" + "9" * 400 + "\n"],
)
def test_what_is_no_clog_is_said_to_be_none(tmp_path: Path, words: str) -> None:
    path = tmp_path / "clog_0.log"
    path.write_text(words)
    with pytest.raises(UnreadableRecording, match="is no clog of torchcomms"):
        clog.read_clogs([path])


def test_hostile_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clog, "KEPT_CALLS", 100)
    monkeypatch.setattr(clog, "MOST_CALLS", 200)
    one = Clog(0, 2)
    one.lines += [
        "C1|sig|all_reduce|" + "in_count=9|" * 200_000,
        "C" + "9" * 5000 + "|Q|work_id=1|+1.000",
        "C1|Q|work_id=" + "9" * 5000 + "|+" + "9" * 5000,
        "split|parent=a|child=b|ranks=" + "7," * 100_000,
        "split|parent=world|child=world|ranks=0,1",
        "new_comm|comm=x|rank=²|world_size=" + "9" * 30,
        "G|R|C|S|+",
    ]
    for _ in range(1000):
        one.call(REDUCE, "")
    path = one.write(tmp_path)
    found = clog.read_clog(path)
    assert len(found.calls) <= 200
    assert found.forgotten == 1000 - len(found.calls)
    assert read_any(path).ranks[0].lost["calls"] == found.forgotten
