"""What several hosts saw of one job, in bundles, folders and documents of hang-dump, is examined as one recording."""

from __future__ import annotations

import json
import lzma
import shutil
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.errors import UnreadableRecording, WrongUse
from distdoctor.launch.post_mortem import open_recording
from distdoctor.recording.bundle import IN_JSON, MAGIC, READABLE, in_json, pack, read_bundle, unpack
from distdoctor.recording.bundle_rows import COARSEST
from distdoctor.recording.merge import merged
from distdoctor.recording.recording import Attempt, Job, RankEnd, Recording
from distdoctor.recording.stacks import ProcessStacks, RankStacks, Stacks
from distdoctor.recording.trace.layout import VERSION
from distdoctor.recording.trace.process_key import ProcessKey
from distdoctor.recording.trace.run_folder import read_run
from distdoctor.testing import recording
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.memory import memory_job

CHECKS = PLUGINS.checks.values()
OF_MANY_CALLS = ("DD506", "DD508")  # more than travel: from a bundle they are not told
GOLDEN = Path(__file__).parent / "golden"
Split = Callable[[Recording], list[Recording]]


def job() -> Recording:
    """Rank 3 of four skips one collective and goes on to a barrier."""
    script = recording(ranks=4)
    for step in range(6):
        if step != 4:
            script.collective("all_reduce", [8], site="train.py:41 train_step").step()
            continue
        script.collective("all_reduce", [8], site="train.py:41 train_step").instead(
            3, op="barrier", site="train.py:57 maybe_save"
        )
    return script.finished()


def hosts_of(found: Recording) -> list[Recording]:
    """What each of two hosts saw of it: its own two ranks and how these ended."""
    parts = []
    for ranks in ((0, 1), (2, 3)):
        ends = {rank: end for rank, end in found.job.ends.items() if rank in ranks}
        logs = {rank: log for rank, log in found.ranks.items() if rank in ranks}
        parts.append(replace(found, job=replace(found.job, ends=ends), ranks=logs))
    return parts


def verdict(found: Recording) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.code, finding.ranks) for finding in examine(found, CHECKS).findings]


def test_the_verdict_of_all_bundles_is_that_of_the_whole_job() -> None:
    whole = job()
    bundles = [pack(part) for part in hosts_of(whole)]

    put_together = merged([unpack(data, "host") for data in bundles])

    assert verdict(whole)
    assert verdict(put_together) == verdict(replace(whole, sources={}))
    assert all(len(data) < 4 * 2048 for data in bundles)


@pytest.mark.parametrize("code", sorted(PLUGINS.checks))
def test_the_verdict_of_a_bundle_is_that_of_what_it_was_made_of(code: str) -> None:
    sick = sys.modules[PLUGINS.checks[code].module].sick()
    if not sick.ranks or sick.resumption or sick.comparison or sick.replay or sick.states or sick.clues or sick.backend:
        pytest.skip("it is told by more than what the ranks of one job recorded, which stays where it is")

    found, whole = verdict(unpack(pack(sick), "host")), verdict(replace(sick, sources={}))

    assert found == whole or code in OF_MANY_CALLS
    assert set(found) <= set(whole)


def test_steps_of_a_model_with_many_tensors_travel_whole() -> None:
    trained = trained_job(2, parameters={f"layer{number}.weight": "[4]" for number in range(600)}).initial()
    for _ in range(3):
        trained.step()
    (first, _) = unpack(pack(trained.recording()), "host").ranks.values()

    digests = first.rows("digests")
    assert set(digests["step"]) == {max(digests["step"])}
    assert set(digests["tensor"]) == set(first.rows("tensors")["seq"])
    assert len(digests) == 600


def test_where_the_ranks_of_a_host_agree_one_step_of_digests_travels_and_where_they_do_not_four() -> None:
    found = []
    for drifts in (False, True):
        trained = trained_job(2).initial()
        for step in range(8):
            trained.step(params={1: 5} if drifts and step == 6 else None)
        found.append(
            [set(log.rows("digests")["step"]) for log in unpack(pack(trained.recording()), "host").ranks.values()]
        )

    assert [len(steps) for steps in found[0]] == [1, 1]
    assert [len(steps) for steps in found[1]] == [4, 4]


def test_memory_of_the_host_travels_to_a_quarter_of_a_mib_and_that_of_tensors_to_the_byte() -> None:
    trained = memory_job(2).trains(
        12, rss=lambda rank, step: 400_000_000 + 1_234_567 * step + rank, parameters=1_234_567
    )
    whole = trained.recording()

    (first, _) = unpack(pack(whole), "host").ranks.values()

    told, known = first.rows("memory"), whole.ranks[0].rows("memory")
    lost = known["rss"].astype(int) - told["rss"].astype(int)
    assert (lost >= 0).all()
    assert 0 < max(lost) < 1 << 18
    assert (told["parameters"] == known["parameters"]).all()
    assert max(told["parameters"]) == 1_234_567


def test_what_ranks_have_in_common_travels_once() -> None:
    trained = trained_job(8).initial()
    for _ in range(40):
        trained.step()
    eight = trained.recording()
    one = replace(eight, ranks={0: eight.ranks[0]})

    assert len(pack(eight)) < 3 * len(pack(one))
    assert [found.texts for found in unpack(pack(eight), "host").ranks.values()] == [
        log.texts for log in eight.ranks.values()
    ]


def of_two_hosts() -> list[Recording]:
    """Each of one rank, which hold the same weights."""
    trained = trained_job(2, parameters={f"layer{number}.weight": "[4]" for number in range(40)}).initial()
    for _ in range(3):
        trained.step()
    return [replace(found, ranks={rank: found.ranks[rank]}) for rank in (0, 1) for found in (trained.recording(),)]


def test_what_hosts_have_alike_travels_once() -> None:
    pieces: list[dict[bytes, bytes]] = [{}, {}]
    whole = of_two_hosts()

    apart = [pack(part, into) for part, into in zip(whole, pieces, strict=True)]

    assert not pieces[1].keys() - pieces[0].keys()
    assert len(apart[1]) < len(pack(whole[1])) / 2
    back = [unpack(data, "host", lambda digest: pieces[0][digest]) for data in apart]
    assert [pack(part) for part in back] == [pack(unpack(pack(part), "host")) for part in whole]


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_a_bundle_without_what_it_has_alike_with_others_is_refused(damage: str) -> None:
    pieces: dict[bytes, bytes] = {}
    data = pack(of_two_hosts()[0], pieces)
    spoiled = {
        "gone": lambda digest: b"",
        "cut": lambda digest: pieces[digest][:-3],
        "other": lambda digest: max(pieces.values()),
    }

    with pytest.raises(UnreadableRecording, match="damaged"):
        unpack(data, "host", spoiled[damage])
    with pytest.raises(UnreadableRecording, match="another distdoctor"):
        unpack(data, "host.ddb")


def test_records_that_would_fill_the_memory_are_refused() -> None:
    data = pack(job())
    bundle = msgspec.msgpack.decode(lzma.decompress(data[len(MAGIC) + 1 :]))
    bundle["ranks"][0]["sections"]["calls"][0] = 1 << 40
    hostile = data[: len(MAGIC) + 1] + lzma.compress(msgspec.msgpack.encode(bundle))

    with pytest.raises(UnreadableRecording, match="more than 8 MiB a rank"):
        unpack(hostile, "host")


def test_one_bundle_alone_is_never_the_whole_job() -> None:
    first, _ = hosts_of(job())

    diagnosis = examine(unpack(pack(first), "host"), CHECKS)

    assert unpack(pack(first), "host").missing == (2, 3)
    assert not any(finding.ranks == (3,) for finding in diagnosis.findings)


def test_the_order_of_hosts_does_not_matter() -> None:
    one, other = hosts_of(job())

    assert verdict(merged([one, other])) == verdict(merged([other, one]))


def test_places_of_every_kind_are_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = hosts_of(job())
    (tmp_path / "h1.ddb").write_bytes(pack(one))
    (tmp_path / "h2.json").write_text(json.dumps({IN_JSON: in_json(other), "other_jobs": []}))
    below = tmp_path / "below" / "h1"
    below.mkdir(parents=True)
    shutil.copy(tmp_path / "h1.ddb", below)

    assert verdict(open_recording(tmp_path / "h1.ddb", tmp_path / "h2.json")) == verdict(merged([one, other]))
    assert open_recording(tmp_path).ranks.keys() == {0, 1, 2, 3}
    assert open_recording(tmp_path / "below").ranks.keys() == {0, 1}


def test_parts_of_different_jobs_are_refused() -> None:
    one, other = hosts_of(job())
    stranger = replace(other, job=replace(other.job, world_size=8))

    with pytest.raises(WrongUse, match="one has 4 ranks, another 8"):
        merged([one, stranger])
    twice = replace(one, ranks={0: replace(one.ranks[0], process=ProcessKey(7, host="elsewhere"))})
    with pytest.raises(WrongUse, match="rank 0 is two processes"):
        merged([one, twice])


def test_a_start_before_the_last_one_is_no_part_of_the_verdict() -> None:
    killed = Recording(Job(world_size=2, ends={1: RankEnd(None, 9, at_ns=4)}), {})
    done = Recording(Job(world_size=2, ends={0: RankEnd(0, at_ns=9)}, attempt=1, earlier=(Attempt(0, 2),)), {})

    found = merged([killed, done]).job

    assert (found.attempt, found.ends) == (1, done.job.ends)
    assert [(start.number, start.ends) for start in found.earlier] == [(0, killed.job.ends)]


def test_looks_of_two_hosts_are_one_look() -> None:
    seen = [
        Stacks({rank: RankStacks(rank, ProcessStacks(100)) for rank in here}, elsewhere=there)
        for here, there in (((0, 1), (2, 3)), ((2, 3), (0, 1)))
    ]
    parts = [unpack(pack(Recording(Job(world_size=4, running=True), {}, stacks=stacks)), "x") for stacks in seen]

    stacks = merged(parts).stacks

    assert stacks is not None
    assert stacks.ranks.keys() == {0, 1, 2, 3}
    assert stacks.elsewhere == ()


@pytest.mark.parametrize("version", READABLE)
def test_a_bundle_of_every_version_gives_the_verdict_of_its_recording(version: int, tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / str(VERSION) / "hang.tar.xz") as file:
        file.extractall(tmp_path, filter="data")
    whole = replace(read_run(tmp_path), sources={})

    bundle = read_bundle(GOLDEN / "bundles" / f"hang-{version}.ddb")

    assert verdict(whole)
    assert verdict(bundle) == verdict(whole)
    for rank, log in whole.ranks.items():
        found = bundle.ranks[rank].calls
        assert (found["prefix"] == log.calls["prefix"]).all()
        assert (found["site_prefix"] == log.calls["site_prefix"]).all()
        assert (log.calls["returned_ns"].view("i8") - found["returned_ns"].view("i8") < COARSEST).all()


@pytest.mark.parametrize("damage", ["cut", "flipped", "newer", "empty"])
def test_a_damaged_bundle_is_said_to_be_damaged(damage: str) -> None:
    data = bytearray(pack(job()))
    if damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    elif damage == "newer":
        data[8] = 99
    else:
        del data[8 if damage == "empty" else len(data) // 2 :]

    with pytest.raises(UnreadableRecording):
        unpack(bytes(data), "host.ddb")


def test_a_bundle_that_names_more_ranks_than_a_job_has_is_damaged_and_fills_no_memory() -> None:
    whole = recording(ranks=2).collective("all_reduce", [8], site="train.py:20 main").live()
    named = replace(whole, job=replace(whole.job, world_size=10**8))

    with pytest.raises(UnreadableRecording, match="names rank 100000000, and no job has more"):
        unpack(pack(named), "host")


def test_a_bundle_whose_clocks_no_number_holds_is_damaged() -> None:
    whole = recording(ranks=2).collective("all_reduce", [8], site="train.py:20 main").live()
    ranks = {rank: replace(log, monotonic_to_wall_ns=1 << 63) for rank, log in whole.ranks.items()}

    with pytest.raises(UnreadableRecording, match=r"two clocks of one host are \d+ seconds apart"):
        unpack(pack(replace(whole, ranks=ranks)), "host")
