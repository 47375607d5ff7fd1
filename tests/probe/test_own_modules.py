"""The user's modules whose digests go into the trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from distdoctor.probe import own_modules


class _Asked(ModuleType):
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


def noted(monkeypatch: pytest.MonkeyPatch, modules: dict[str, object]) -> list[str]:
    """What is noted when the group is made, in a process that has imported these."""
    paths: list[str] = []
    trace = SimpleNamespace(texts=SimpleNamespace(note_source=paths.append))
    rank = SimpleNamespace(trace=trace, on_group=[], at_end=[], guarded=lambda function: function)
    own_modules.install(rank)  # type: ignore[arg-type]
    with monkeypatch.context() as patched:
        for name, module in modules.items():
            patched.setitem(sys.modules, name, module)
        rank.on_group[0]()
    return paths


def module(path: Path, kind: type[ModuleType] = ModuleType) -> ModuleType:
    made = kind(path.stem)
    made.__dict__["__file__"] = str(path)
    return made


def test_modules_of_the_working_folder_are_noted_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own, library, elsewhere = tmp_path / "own.py", tmp_path / "site-packages" / "lib.py", tmp_path.parent / "other.py"
    modules = {"own": module(own), "lib": module(library), "other": module(elsewhere), "odd": object(),
               "asked": _Asked("asked")}  # fmt: skip

    found = noted(monkeypatch, modules)

    assert [path for path in found if path.startswith(str(tmp_path))] == [str(own)]
    assert str(elsewhere) not in found


def test_a_working_folder_that_is_gone_costs_nothing_but_the_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")

    assert noted(monkeypatch, {}) == []
