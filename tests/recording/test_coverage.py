"""What is missing of a job is part of the verdict: nothing is healthy, and nothing certain, that the missing could overturn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from commands import Said
from seeds import DISTDOCTOR, copy_of, run_folder

from distdoctor.recording.coverage import Coverage
from distdoctor.recording.open import open_run
from distdoctor.recording.trace.layout import HEADER, SECTIONS_AT
from distdoctor.recording.trace.run_folder import trace_paths

pytestmark = pytest.mark.job
Examine = Callable[..., Said]
FORMATS = ("text", "json", "sarif", "junit", "github", "html")


@pytest.fixture
def seed(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: copy_of(run_folder(name, tmp_path_factory), tmp_path / "run")


@pytest.fixture
def examine(say: Callable[..., Said]) -> Callable[..., Said]:
    def examined(folder: Path, *words: str) -> Said:
        said = say("examine", folder, *words)
        assert "Traceback" not in said.err, said.err
        return said

    return examined


def test_what_was_seen_whole_is_healthy(examine: Examine, seed: Callable[[str], Path]) -> None:
    done = examine(seed("healthy"), "--output-format", "json")

    document = json.loads(done.out)
    assert (done.code, document["state"], document["coverage"]["gaps"]) == (0, "healthy", [])
    assert document["coverage"]["whole"] == [0, 1]


def without(folder: Path, rank: int) -> None:
    trace_paths(folder)[rank].unlink()


def cut(folder: Path, rank: int) -> None:
    os.truncate(trace_paths(folder)[rank], 100_000)


def emptied(folder: Path, rank: int) -> None:
    os.truncate(trace_paths(folder)[rank], 0)


def a_pipe(folder: Path, rank: int) -> None:
    path = trace_paths(folder)[rank]
    path.unlink()
    os.mkfifo(path)


def endless(folder: Path, rank: int) -> None:
    path = trace_paths(folder)[rank]
    path.unlink()
    path.symlink_to("/dev/zero")


def huge(folder: Path, rank: int) -> None:
    os.truncate(trace_paths(folder)[rank], 3 << 30)


def another_ranks(folder: Path, rank: int) -> None:
    paths = trace_paths(folder)
    paths[rank].write_bytes(paths[1 - rank].read_bytes())


def one_bit(folder: Path, rank: int) -> None:
    path = trace_paths(folder)[rank]
    content = bytearray(path.read_bytes())
    content[200_000] ^= 1
    path.write_bytes(content)


SPOILED = [
    (without, "missing"),
    (cut, "torn"),
    (emptied, "torn"),
    (a_pipe, "unreadable"),
    (endless, "unreadable"),
    (huge, "unreadable"),
    (another_ranks, "torn"),
    (one_bit, "torn"),
]


@pytest.mark.parametrize(("spoil", "how"), SPOILED, ids=[spoil.__name__ for spoil, _ in SPOILED])
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_cannot_be_read_is_said_in_every_format(
    examine: Examine, seed: Callable[[str], Path], spoil: Callable[[Path, int], None], how: str, rank: int
) -> None:
    folder = seed("healthy")
    spoil(folder, rank)

    for form in FORMATS:
        done = examine(folder, "--output-format", form)
        assert done.code == 5, form
        assert "1 of 2 ranks seen" in done.out, form
        assert "healthy:" not in done.out, form
        if form == "json":
            assert json.loads(done.out)["coverage"][how] == [rank]
            assert json.loads(done.out)["state"] == "incomplete"
        if form == "junit":
            suite = ElementTree.fromstring(done.out)
            assert suite.get("errors") == "1"
        if form == "sarif":
            (run,) = json.loads(done.out)["runs"]
            assert run["invocations"][0]["executionSuccessful"] is False


@pytest.mark.parametrize("spoil", [without, cut, emptied], ids=lambda spoil: spoil.__name__)
def test_a_job_of_which_nothing_can_be_read_was_not_looked_at(
    examine: Examine, seed: Callable[[str], Path], spoil: Callable[[Path, int], None]
) -> None:
    folder = seed("healthy")
    for rank in (0, 1):
        spoil(folder, rank)

    done = examine(folder)

    assert done.code == (4 if spoil is without else 5)
    assert done.out.startswith("nothing was seen: 0 of 2 ranks seen")


def test_an_innocent_rank_is_not_accused_for_certain_while_the_culprits_trace_is_gone(
    examine: Examine, seed: Callable[[str], Path]
) -> None:
    folder = seed("non-finite")
    assert json.loads(examine(folder, "--output-format", "json").out)["findings"][0]["ranks"] == [1]
    without(folder, 1)

    done = examine(folder, "--output-format", "json")

    document = json.loads(done.out)
    assert [finding["confidence"] for finding in document["findings"] if finding["code"] == "DD801"] != ["certain"]
    assert "rank 1 left no recording" in document["coverage"]["gaps"]


def test_what_another_host_was_to_read_is_not_missing(seed: Callable[[str], Path]) -> None:
    folder = seed("healthy")
    part = Coverage.of(open_run(folder, ranks={0}))
    assert (part.unread, part.missing) == ((1,), ())
    assert part.gaps == ("rank 1 left a trace that was not read here",)
    assert not part.complete

    without(folder, 1)
    gone = Coverage.of(open_run(folder, ranks={0}))
    assert (gone.unread, gone.missing) == ((), (1,))


@pytest.mark.parametrize("name", ["host-1.json", "job.json", "comparison.json", "resumption.json"])
def test_a_damaged_file_beside_the_traces_is_no_health(
    examine: Examine, seed: Callable[[str], Path], name: str
) -> None:
    folder = seed("healthy")
    (folder / name).write_text("[" * 200_000)

    done = examine(folder)

    assert done.code == 5
    assert f"{name} is damaged" in done.out


@pytest.mark.parametrize("name", ["rank-00001.a0.json", "rank-00000.a0.state-0.json", "seen-*.json"])
def test_what_a_launcher_noted_and_is_gone_is_no_health(
    examine: Examine, seed: Callable[[str], Path], name: str
) -> None:
    folder = seed("healthy")
    (path,) = folder.glob(name)
    path.unlink()

    done = examine(folder)

    assert done.code == 5
    assert f"{path.name} is missing: the job had left it" in done.out


@pytest.mark.parametrize("name", ["rank-00001.a0.json", "seen-*.json"])
def test_a_file_beside_the_traces_that_is_endless_is_not_read(
    examine: Examine, seed: Callable[[str], Path], name: str
) -> None:
    folder = seed("healthy")
    (path,) = folder.glob(name)
    os.truncate(path, 1 << 40)

    done = examine(folder)

    assert done.code == 5
    assert f"{path.name} is damaged" in done.out


def test_words_of_the_time_while_it_ran_of_which_one_bit_flipped_are_not_believed(
    examine: Examine, seed: Callable[[str], Path]
) -> None:
    folder = seed("healthy")
    (path,) = folder.glob("seen-*.json")
    said = path.read_bytes()
    path.write_bytes(said.replace(b'"wall_ns":0', b'"wall_ns":1'))
    assert path.read_bytes() != said

    assert f"{path.name} is damaged" in examine(folder).out


def launchers_file(folder: Path) -> tuple[Path, dict[str, Any]]:
    (path,) = folder.glob("host-*.json")
    return path, json.loads(path.read_text())


def without_digests(folder: Path) -> None:
    """As a job leaves its folder whose launcher was killed at the very end."""
    path, fields = launchers_file(folder)
    fields["digests"] = {}
    path.write_text(json.dumps(fields))


@pytest.mark.parametrize("world", [-5, 10**9, "x", None, 1.5])
def test_a_world_that_no_job_has_is_damage(examine: Examine, seed: Callable[[str], Path], world: object) -> None:
    folder = seed("healthy")
    path, fields = launchers_file(folder)
    fields["starts"][0]["world_size"] = world
    path.write_text(json.dumps(fields))

    assert examine(folder).code == 5


@pytest.mark.parametrize("name", ["rank", "world_size", "attempt", "section_count", "version", "file_bytes"])
def test_a_header_that_no_probe_writes_is_damage(examine: Examine, seed: Callable[[str], Path], name: str) -> None:
    folder = seed("healthy")
    without_digests(folder)
    path = trace_paths(folder)[1]
    content = bytearray(path.read_bytes())
    content[HEADER.offsets[name] + 3] ^= 0x40
    if name == "section_count":
        content[HEADER.offsets[name]] = 3
    path.write_bytes(content)

    done = examine(folder)

    assert done.code == 5
    assert "1 of 2 ranks seen" in done.out


def test_a_section_that_is_renamed_or_resized_is_damage(examine: Examine, seed: Callable[[str], Path]) -> None:
    folder = seed("healthy")
    without_digests(folder)
    path = trace_paths(folder)[0]
    content = bytearray(path.read_bytes())
    content[SECTIONS_AT] ^= 1
    path.write_bytes(content)

    assert examine(folder).code == 5


def test_a_job_whose_launcher_and_ranks_were_all_killed_did_not_end_well(examine: Examine, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "for _ in range(5): dist.all_reduce(torch.ones(1))\n"
        "open(f'ready-{dist.get_rank()}', 'w').close()\n"
        "time.sleep(300)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DISTDOCTOR")} | {"OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        [str(DISTDOCTOR), "run", "--nproc", "2", str(script)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not all((tmp_path / f"ready-{rank}").exists() for rank in (0, 1)):
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    folder = (tmp_path / ".distdoctor/runs/latest").resolve()
    pids = [json.loads(line) for line in ranks_of(folder)]
    job.send_signal(signal.SIGKILL)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    job.wait()

    done = examine(folder)

    assert done.code == 5
    assert "nobody saw how the job ended" in done.out
    assert "healthy" not in done.out
    shown = subprocess.run([str(DISTDOCTOR), "show", str(folder)], capture_output=True, text=True, timeout=60).stdout
    assert "its end was not seen" in shown


def ranks_of(folder: Path) -> list[str]:
    from distdoctor.recording.trace.reader import read_trace

    return [str(read_trace(path, only=frozenset()).head.pid) for path in trace_paths(folder).values()]
