"""What a shell completes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from distdoctor.cli.completion import VARIABLE
from distdoctor.cli.main import cli


@pytest.mark.parametrize(
    ("words", "among"),
    [
        ("run --strategy fs", "fsdp"),
        ("run --fire-drill non", "non-finite-origin"),
        ("run --stop-on na", "nan"),
        ("run --model conv", "convnet"),
        ("run --data dig", "digits"),
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
