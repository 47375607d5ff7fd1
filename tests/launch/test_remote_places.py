"""A recording in a store is examined as one on disk: memory://, file:// and, where moto is installed, a real S3 server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner

from distdoctor.cli.examine import examine
from distdoctor.errors import DoctorError, NothingToInspect, WrongUse
from distdoctor.launch import remote_places
from distdoctor.launch.remote_places import brought_here, is_address
from distdoctor.recording.bundle import pack
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording


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


def test_nothing_stays_behind(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/runs/a.txt", b"x")

    with brought_here("memory://runs", lambda words: None) as folder:
        assert (folder / "a.txt").read_bytes() == b"x"

    assert not folder.exists()


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
        pytest.skip("moto's server is not installed (pip install 'moto[server]')")
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
    finally:
        process.kill()
        process.communicate()
