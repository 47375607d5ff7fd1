"""Every command explains itself in the same look."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import click
import pytest

from distdoctor.cli.examples import EXAMPLES
from distdoctor.cli.main import COMMANDS, cli


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_its_options_in_a_box(say: Callable[..., Any], command: str) -> None:
    said = say(command, "--help")

    assert said.code == 0
    assert "╭─ Options ─" in said.out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example_and_none_twice(say: Callable[..., Any], command: str) -> None:
    lines = say(command, "--help").out.splitlines()

    examples = [line.strip() for line in lines if f"distdoctor {command}" in line and "Usage:" not in line]
    assert examples
    assert len(examples) == len({*examples})


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_the_options_of_every_example_are_there(line: str) -> None:
    words = shlex.split(line.partition(" >> ")[0])
    words = words[words.index("distdoctor") + 1 :]
    command = cli.get_command(click.Context(cli), words[0])

    assert command is not None
    command.make_context(words[0], words[1:], resilient_parsing=True)  # which an unknown option does not survive
