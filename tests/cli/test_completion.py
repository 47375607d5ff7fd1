"""What a shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from distdoctor.cli.completion import VARIABLE
from distdoctor.cli.main import cli
from distdoctor.cli.remembered import remembered

ASKED = """
import sys
from distdoctor.cli.main import main
try:
    main([])
finally:
    print("LOADED", *{name.partition(".")[0] for name in sys.modules})
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "distdoctor" / "completion.json"


@pytest.mark.parametrize(
    ("words", "among"),
    [
        ("run --strategy fs", "fsdp"),
        ("run --fire-drill non", "non-finite-origin"),
        ("run --stop-on na", "nan"),
        ("run --model conv", "convnet"),
        ("run --data dig", "digits"),
        ("run --nnod", "--nnodes"),
        ("run --strategy pipeline --sche", "--schedule"),
        ("run --strategy pipeline --schedule gp", "gpipe"),
        ("run --strategy gone --nnod", "--nnodes"),
        ("explain DD10", "DD101"),
        ("report --ignore missing", "missing-set-epoch"),
        ("examine --output-format sa", "sarif"),
        ("wat", "watch"),
    ],
)
def test_values_are_completed(words: str, among: str) -> None:
    *before, started = words.split()

    found = [item.value for item in ShellComplete(cli, {}, "distdoctor", VARIABLE).get_completions(before, started)]

    assert among in found
    assert all(one.startswith(started) for one in found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_names_the_command(shell: str, say: Callable[..., Any]) -> None:
    said = say("completion", shell)

    assert said.code == 0
    assert f"_DISTDOCTOR_COMPLETE={shell}_complete" in said.out


def _asked(words: str) -> tuple[list[str], set[str]]:
    """What a shell is told in a new process, and which packages that took."""
    number = str(len(words.split()))
    asks = {VARIABLE: "bash_complete", "COMP_WORDS": f"distdoctor {words} ", "COMP_CWORD": str(int(number) + 1)}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], env=os.environ | asks, capture_output=True, text=True, timeout=120
    )
    *told, loaded = done.stdout.splitlines()
    return told, set(loaded.split()[1:])


def test_what_was_completed_once_needs_neither_torch_nor_plugins_again() -> None:
    first, _ = _asked("run --strategy")

    again, loaded = _asked("run --strategy")

    assert "plain,fsdp" in again
    assert again == first
    assert not {"torch", "numpy", "distdoctor_strategies"} & loaded


def test_values_are_read_anew_once_a_file_they_came_from_has_changed(tmp_path: Path, cache: Path) -> None:
    source = tmp_path / "plugin.py"
    source.touch()
    made = iter(["first", "second", "third", "fourth"])

    def ask() -> Any:
        return remembered("kind", lambda: next(made), lambda: [source])

    assert [ask(), ask()] == ["first", "first"]
    os.utime(source, ns=(0, 1))
    assert [ask(), ask()] == ["second", "second"]
    sys.path.insert(0, str(tmp_path))
    try:
        assert ask() == "third"
    finally:
        sys.path.remove(str(tmp_path))
    cache.write_text(json.dumps(["not", "ours"]))
    assert ask() == "fourth"


def test_where_nothing_can_be_kept_values_are_completed_all_the_same(cache: Path) -> None:
    cache.parent.parent.write_text("a file where the folder would be")

    assert remembered("kind", lambda: "value", list) == "value"
