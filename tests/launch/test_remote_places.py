"""A recording in a store is examined as one on disk: memory://, file:// and, where moto is installed, a real S3 server."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner

from distdoctor.cli.examine import examine
from distdoctor.errors import DoctorError, NothingToInspect, UnreadableRecording, WrongUse
from distdoctor.launch import remote_places, stored_recordings
from distdoctor.launch.remote_places import brought_here, is_address
from distdoctor.launch.stored_recordings import read_there
from distdoctor.recording.bundle import pack
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import VERSION
from distdoctor.testing import recording

GOLDEN = Path(__file__).parent.parent / "recording" / "golden"


def skipped() -> Recording:
    script = recording(ranks=2)
    for step in range(6):
        call = script.collective("all_reduce", [8], site="train.py:41 train_step")
        if step == 4:
            call.instead(1, op="barrier", site="train.py:57 maybe_save")
        script.step()
    return script.finished()


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def examined(*places: str) -> tuple[int, str]:
    done = CliRunner().invoke(examine, list(places))
    if isinstance(done.exception, DoctorError):
        raise done.exception
    return done.exit_code, done.output


def test_paths_are_told_from_addresses() -> None:
    assert [
        is_address(place) for place in ("s3://b/r", "file:///r", "memory://r", "run", "C:/run", "-", "a::s3://b")
    ] == [
        *(True, True, True),
        *(False, False, False, False),
    ]


def test_a_bundle_in_a_store_gives_the_verdict_of_the_one_on_disk(
    memory: fsspec.AbstractFileSystem, tmp_path: Path
) -> None:
    (tmp_path / "h1.ddb").write_bytes(pack(skipped()))
    memory.pipe("/runs/one/h1.ddb", pack(skipped()))

    here = examined(str(tmp_path / "h1.ddb"))

    assert here[0] == 1
    assert "DD10" in here[1]
    assert examined("memory://runs/one/h1.ddb") == here
    assert examined("memory://runs/one") == here
    assert examined((tmp_path / "h1.ddb").as_uri()) == here


def dumps(ranks: int, culprit: int) -> dict[str, bytes]:
    """Flight recorder dumps of a job in which one rank left out its fourth call, by name."""
    found = {}
    for rank in range(ranks):
        lines = [41, 44, 41, 57, 41, 44] if rank != culprit else [41, 44, 41, 41, 44, 41]
        entries = [
            {
                "record_id": at, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": at + 1, "p2p_seq_id": 0,
                "profiling_name": "nccl:all_gather" if line == 57 else "nccl:all_reduce", "time_created_ns": 10**18 + at,
                "input_sizes": [[line]], "input_dtypes": ["Float"], "output_sizes": [[line]], "output_dtypes": ["Float"],
                "state": "completed" if at < 3 else "scheduled", "retired": at < 3, "is_p2p": False,
                "frames": [{"name": "step", "filename": "/job/train.py", "line": line}],
            }
            for at, line in enumerate(lines)
        ]  # fmt: skip
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
        content = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        found[f"rank_{rank}"] = pickle.dumps(content, protocol=2)
    return found


@pytest.fixture
def no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No temporary folder can be made."""

    def refuse(*args: object, **values: object) -> None:
        raise AssertionError("a temporary folder is made")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)


@pytest.mark.usefixtures("no_copy")
def test_dumps_in_a_store_are_read_in_batches_and_give_the_verdict_of_those_on_disk(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_recordings, "MOST_OF_A_BATCH", 4)
    written = {**dumps(9, 5), "rank_9": b"\x80\x02torn"}
    for name, content in written.items():
        (tmp_path / name).write_bytes(content)
    memory.pipe({f"/job/{name}": content for name, content in written.items()} | {"/job/README.txt": b"hello"})
    said: list[str] = []

    (found,) = read_there("memory://job", said.append, None)
    here, there = examined(str(tmp_path)), examined("memory://job")

    assert said == ["4 of 10 dumps are read", "8 of 10 dumps are read"]
    assert list(found.ranks) == list(range(9))
    assert [trouble.rank for trouble in found.troubles] == [9]
    assert "rank 5" in here[1]
    assert there[1].replace("/job/rank_9", "F") == "".join(f"distdoctor: {words}\n" for words in said) + here[
        1
    ].replace(f"{tmp_path}/rank_9", "F")


@pytest.mark.usefixtures("no_copy")
def test_one_dump_and_one_host_bundle_are_read_without_a_copy(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/job/rank_5", dumps(9, 5)["rank_5"])
    memory.pipe({"/run/h1.ddb": pack(skipped()), "/run/h2.ddb": pack(skipped())})

    assert [list(one.ranks) for one in read_there("memory://job/rank_5", print, None)] == [[5]]
    assert len(read_there("memory://run", print, None)) == 2


def test_nothing_stays_behind(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/runs/a.txt", b"x")

    with brought_here("memory://runs", lambda words: None) as brought:
        assert (brought.path / "a.txt").read_bytes() == b"x"

    assert not brought.path.exists()


def test_traces_of_a_run_in_a_store_are_read_there_and_give_the_same_verdict(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(GOLDEN / str(VERSION) / "hang.tar.xz") as file:
        file.extractall(tmp_path, filter="data")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    memory.pipe({f"/run/{path.relative_to(tmp_path).as_posix()}": content for path, content in files.items()})
    monkeypatch.setattr(remote_places, "BATCH_FILES", 1)
    fetched: list[list[str]] = []
    read = remote_places.contents
    monkeypatch.setattr(
        remote_places, "contents", lambda *asked: fetched.append([one.path for one in asked[1]]) or read(*asked)
    )

    here, there = examined(str(tmp_path)), examined("memory://run")

    assert here[0] == there[0] == 3
    assert [line for line in there[1].splitlines() if " are " not in line] == here[1].splitlines()
    assert "1 of 2 traces are read" in there[1]
    assert [paths for paths in fetched if paths[0].endswith(".trace")] == [
        [f"/run/rank-0000{rank}.a0.trace"] for rank in (0, 1)
    ]
    with brought_here("memory://run", lambda words: None) as brought:
        assert {path.stat().st_size for path in brought.path.glob("*.trace")} == {0}
        memory.rm("/run/rank-00001.a0.trace")
        with pytest.raises(UnreadableRecording, match="cannot be read"):
            brought.traces.bytes_of(brought.path / "rank-00001.a0.trace")


def test_what_is_not_there_or_unknown_is_one_sentence(memory: fsspec.AbstractFileSystem) -> None:
    with pytest.raises(NothingToInspect, match="there is nothing at memory://nowhere"):
        examined("memory://nowhere")
    with pytest.raises(WrongUse, match="there is no storage named nosuch"):
        examined("nosuch://a/b")


@pytest.mark.parametrize(
    ("bound", "value", "words"),
    [
        ("MOST_FILES", 1, "holds 2 files"),
        ("LARGEST_FILE", 2, "has 3 bytes"),
        ("MOST_BYTES", 4, "holds 0 GiB, more than"),
    ],
)
def test_what_no_recording_can_be_is_not_read(
    bound: str, value: int, words: str, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe({"/runs/a": b"xxx", "/runs/b": b"yy"})
    monkeypatch.setattr(remote_places, bound, value)

    with pytest.raises(WrongUse, match=words):
        examined("memory://runs")


def test_a_password_in_an_address_is_not_shown() -> None:
    with pytest.raises(DoctorError) as raised:
        examined("nosuch://me:secret@host/run")

    assert "secret" not in str(raised.value)


@pytest.mark.job
def test_a_bucket_of_a_real_s3_server_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    server = shutil.which("moto_server", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if server is None:
        pytest.skip("moto's server is not installed (pip install 'moto[s3]' flask flask-cors)")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    process = subprocess.Popen([server, "-p", "0", "-H", "127.0.0.1"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "Running on" in line)
        monkeypatch.setenv("AWS_ENDPOINT_URL", line.split()[-1])
        system = fsspec.filesystem("s3")
        system.mkdir("runs")
        system.pipe({f"runs/one/h{number}.ddb": pack(skipped()) for number in range(3)})

        assert examined("s3://runs/one/h1.ddb")[0] == 1
        assert examined("s3://runs/one") == examined("s3://runs/one/h1.ddb")
        with pytest.raises(NothingToInspect):
            examined("s3://runs/two")
        (tmp_path / "dumps").mkdir()
        for name, content in dumps(64, 5).items():
            (tmp_path / "dumps" / name).write_bytes(content)
            system.pipe(f"runs/dumps/{name}", content)
        assert examined("s3://runs/dumps") == examined(str(tmp_path / "dumps"))
        words = [sys.executable, "-m", "distdoctor", "examine", "--output-format", "json"]
        afar = subprocess.run([*words, "s3://runs/dumps"], capture_output=True, timeout=120, check=False)
        here = subprocess.run([*words, str(tmp_path / "dumps")], capture_output=True, timeout=120, check=False)
        assert afar.stdout == here.stdout, afar.stderr.decode()
    finally:
        process.kill()
        process.communicate()
