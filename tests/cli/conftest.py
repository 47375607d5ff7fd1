"""The command line in this process, and in a fresh one."""

from __future__ import annotations

import os
import subprocess
import sys
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
    """Run `distdoctor ARGS` in this process, in an empty folder, without settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("DISTDOCTOR"):
            monkeypatch.delenv(name)

    def command(*arguments: object) -> Said:
        from distdoctor.cli.main import main

        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Said(int(end.value.code or 0), said.out, said.err)

    return command


@pytest.fixture
def modules_after(tmp_path: Path) -> Callable[..., set[str]]:
    """The top-level modules that a fresh interpreter has loaded when `distdoctor ARGS` is done."""

    def loaded(*arguments: object) -> set[str]:
        code = (
            "import sys\nfrom distdoctor.cli.main import main\n"
            f"try:\n    main({[str(a) for a in arguments]!r})\n"
            "except SystemExit as end:\n    assert end.code in (0, None, 4), end.code  # 4: the folder may hold no trace\n"
            "print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.rpartition("LOADED")[2].split())

    return loaded
