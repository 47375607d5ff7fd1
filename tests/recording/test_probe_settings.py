"""What a launcher asks of the probe is written once, read whole, and never guessed."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.trace.layout import STREAMS
from distdoctor.recording.trace.probe_settings import FILE, VARIABLE, ProbeSettings, read_settings

ROOT = Path(__file__).parent.parent.parent
FULL = ProbeSettings(frozenset({"memory", "progress"}), frozenset({"memory"}), 4, 2, 100, True, 5 << 30)


@pytest.mark.parametrize("settings", [ProbeSettings(), FULL])
def test_settings_are_read_as_they_were_written(settings: ProbeSettings, tmp_path: Path) -> None:
    path = settings.write(tmp_path)

    assert read_settings(path) == (tmp_path, settings)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_ranks_are_told_by_one_variable(tmp_path: Path) -> None:
    assert ProbeSettings().hand_over(tmp_path) == {VARIABLE: str(tmp_path / FILE)}


def test_a_link_that_lies_in_the_way_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / FILE).symlink_to(victim)

    ProbeSettings().write(tmp_path)

    assert victim.read_text() == "mine"
    assert not (tmp_path / FILE).is_symlink()


def test_a_folder_that_takes_no_bytes_has_its_settings_in_the_launchers_memory(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()  # nothing can be put in its place

    path = FULL.write(tmp_path)

    assert path.parent.parent.parent == Path("/proc")
    assert read_settings(path) == (tmp_path, FULL)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"folder": None}, "names no run folder"),
        ({"colour": "red"}, "holds colour, which this distdoctor does not know"),
        ({"streams": "memory"}, "holds no settings: streams is 'memory'"),
        ({"every": -1}, "holds no settings: every is -1"),
        ({"kill_at": True}, "holds no settings: kill_at is True"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    path = FULL.write(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))

    with pytest.raises(UnreadableRecording, match=re.escape(words)):
        read_settings(path)


@pytest.mark.parametrize("content", [None, b"", b'{"folder": "/tmp", "str', b"[1]", b"\xff\xfe"])
def test_settings_that_are_gone_or_torn_are_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)

    with pytest.raises(UnreadableRecording):
        read_settings(tmp_path / FILE)


def test_a_stream_of_another_version_is_left_out(tmp_path: Path) -> None:
    path = ProbeSettings(STREAMS | {"tides"}).write(tmp_path)

    assert read_settings(path)[1].streams == STREAMS


def test_every_variable_that_is_read_is_in_the_documentation() -> None:
    """Settings have a variable each, made from their names; beside these there are four, and no fifth comes unnoticed."""
    sources = [path for room in ("distdoctor", "plugins") for path in (ROOT / room).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r"\bDISTDOCTOR_[A-Z_]+\b", path.read_text("utf-8"))}
    documented = set(re.findall(r"`(DISTDOCTOR_[A-Z_]+)`", (ROOT / "docs" / "configuration.md").read_text("utf-8")))

    assert named == {VARIABLE, "DISTDOCTOR_DEBUG", "DISTDOCTOR_COLLECTIVES", "DISTDOCTOR_LIVE"}
    assert named <= documented
