"""Small files that name a checkpoint are read as they are found beside what was saved, and nobody else's."""

from __future__ import annotations

import json
from pathlib import Path

from distdoctor.probe.checkpoints.pointers import FoundPointer, pointers_beside


def in_folders(root: Path, *steps: int) -> list[str]:
    """The paths of saves into a folder for each step."""
    paths = [root / f"step_{step}" / "state.pt" for step in steps]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.touch()
    return [str(path) for path in paths]


def test_json_above_the_folders_names_one_that_was_saved_and_is_gone(tmp_path: Path) -> None:
    saved = [*in_folders(tmp_path, 6, 8), str(tmp_path / "step_12" / "state.pt")]
    pointer = tmp_path / "latest.json"
    pointer.write_text(json.dumps({"folder": "step_12", "step": 12}))

    assert list(pointers_beside(saved, 8)) == [
        FoundPointer(str(pointer), str(tmp_path / "step_12"), False, ("step_6", "step_8"))
    ]


def test_a_pointer_to_what_is_there_has_nothing_beside_it(tmp_path: Path) -> None:
    saved = in_folders(tmp_path, 6, 8)
    (tmp_path / "latest").write_text("step_8\n")

    assert [(one.there, one.beside) for one in pointers_beside(saved, 8)] == [(True, ())]


def test_a_name_in_json_may_be_that_of_a_file_in_the_folder_of_its_step(tmp_path: Path) -> None:
    saved = in_folders(tmp_path, 6, 8)
    (tmp_path / "latest.json").write_text(json.dumps({"file": "state.pt", "step": 8}))

    assert [one.there for one in pointers_beside(saved, 8)] == [True]


def test_what_somebody_else_left_above_the_folders_is_none(tmp_path: Path) -> None:
    saved = in_folders(tmp_path, 6)
    (tmp_path / "latest").write_text("run-of-yesterday")
    (tmp_path / "last.json").write_text(json.dumps({"dataset": "c4"}))

    assert list(pointers_beside(saved, 8)) == []


def test_a_path_two_folders_above_names_one_that_is_gone(tmp_path: Path) -> None:
    saved = [*in_folders(tmp_path / "checkpoints", 6, 8), str(tmp_path / "checkpoints" / "step_12" / "state.pt")]
    pointer = tmp_path / "latest"
    pointer.write_text("checkpoints/step_12\n")

    assert list(pointers_beside(saved, 8)) == [
        FoundPointer(str(pointer), str(tmp_path / "checkpoints" / "step_12"), False, ("step_6", "step_8"))
    ]


def test_a_path_two_folders_above_to_what_is_there_is_whole(tmp_path: Path) -> None:
    saved = in_folders(tmp_path / "checkpoints", 6, 8)
    (tmp_path / "latest").write_text("checkpoints/step_8")

    assert [one.there for one in pointers_beside(saved, 8)] == [True]


def test_two_folders_above_the_step_of_another_run_is_not_ours(tmp_path: Path) -> None:
    saved = in_folders(tmp_path / "mine", 6)
    (tmp_path / "latest").write_text("theirs/step_6")
    (tmp_path / "last").write_text("step_6")

    assert list(pointers_beside(saved, 8)) == []


def test_json_that_is_no_object_or_torn_is_none(tmp_path: Path) -> None:
    saved = in_folders(tmp_path, 6)
    (tmp_path / "latest.json").write_text('{"folder": "step_6')
    (tmp_path / "last.json").write_text("[1, 2]")

    assert list(pointers_beside(saved, 8)) == []
