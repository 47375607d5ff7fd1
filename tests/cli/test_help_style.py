"""Every command explains itself in the same look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from distdoctor.cli.main import COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_its_options_in_a_box(say: Callable[..., Any], command: str) -> None:
    said = say(command, "--help")

    assert said.code == 0
    assert "╭─ Options ─" in said.out
