"""Where a run is recorded: never through somebody else's links, and never at the cost of the job."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from distdoctor.errors import WrongUse
from distdoctor.launch.new_run_folder import make_run_folder
from distdoctor.recording.files import write_whole


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_everything_is_the_owners_alone_whatever_the_umask(here: Path) -> None:
    before = os.umask(0)
    try:
        folder = make_run_folder("train")
        write_whole(folder / "x.json", "{}")
    finally:
        os.umask(before)

    for path in (here / ".distdoctor", here / ".distdoctor/runs", folder):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in (here / ".distdoctor/.gitignore", folder / "x.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["x.json"]


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(here: Path) -> None:
    precious = here / "precious"
    precious.write_text("mine")
    (here / "x.json").symlink_to(precious)

    write_whole(here / "x.json", "ours")

    assert precious.read_text() == "mine"
    assert (here / "x.json").read_text() == "ours"


def test_a_dangling_gitignore_makes_no_file_where_it_points(here: Path) -> None:
    (here / ".distdoctor").mkdir(mode=0o700)
    (here / ".distdoctor/.gitignore").symlink_to(here / "made")

    make_run_folder("train")

    assert not (here / "made").exists()


@pytest.mark.parametrize("how", ["file", "link", "writable", "foreign"])
def test_where_somebody_else_could_interfere_the_run_lies_among_the_temporary_files(here: Path, how: str) -> None:
    place = here / ".distdoctor"
    if how == "file":
        place.write_text("")
    elif how == "link":
        (here / "elsewhere").mkdir()
        place.symlink_to(here / "elsewhere")
    else:
        place.mkdir()
        if how == "writable":
            place.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(place, 65534, 65534)
        else:
            pytest.skip("only root can give a folder away")
    said: list[str] = []

    folder = make_run_folder("train", notice=said.append)

    assert not folder.is_relative_to(here / ".distdoctor")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [str(folder) in words for words in said] == [True]
    folder.rmdir()


def test_a_folder_that_was_asked_for_is_no_other(here: Path) -> None:
    (here / "runs").write_text("")

    with pytest.raises(WrongUse, match="no run folder can be made"):
        make_run_folder("train", here / "runs" / "mine")


def test_the_folders_above_one_that_was_asked_for_let_nobody_else_put_another_in_its_place(here: Path) -> None:
    before = os.umask(0)
    try:
        folder = make_run_folder("train", here / "runs" / "today" / "mine")
    finally:
        os.umask(before)

    modes = [stat.S_IMODE(path.stat().st_mode) for path in (here / "runs", here / "runs/today", folder)]
    assert modes == [0o755, 0o755, 0o700]


@pytest.mark.parametrize("how", ["folder", "link"])
def test_a_folder_or_a_link_of_somebody_else_is_not_recorded_into(here: Path, how: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    (here / "elsewhere").mkdir(mode=0o700)
    place = here / "mine"
    if how == "folder":
        place.mkdir()
    else:
        place.symlink_to("elsewhere")
    os.chown(place, 65534, 65534, follow_symlinks=False)

    with pytest.raises(WrongUse, match="belongs to somebody else"):
        make_run_folder("train", place)


def test_ones_own_link_leads_to_another_disk(here: Path) -> None:
    (here / "scratch").mkdir()
    (here / "mine").symlink_to("scratch")

    assert make_run_folder("train", here / "mine") == here / "mine"
