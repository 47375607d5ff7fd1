"""The command line in this process: what it says and how it ends, without the second that a new interpreter takes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run `distdoctor ARGS` in this process, in an empty folder, without settings from outside; `given` is its standard input."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("DISTDOCTOR"):
            monkeypatch.delenv(name)

    def command(*arguments: object, given: str = "") -> Said:
        from distdoctor.cli.main import main

        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode()), "utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Said(int(end.value.code or 0), said.out, said.err)

    return command
