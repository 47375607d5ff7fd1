"""The command line in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from distdoctor.cli.main import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        assert end.code in (0, None, 4), (words, end.code)  # 4: the folder may hold no trace
    print("LOADED", json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.fixture
def modules_after(tmp_path: Path) -> Callable[..., list[set[str]]]:
    """The top-level modules that one fresh interpreter has loaded when each of these commands is done, one after another."""

    def loaded(*commands: Sequence[object]) -> list[set[str]]:
        words = json.dumps([[str(word) for word in command] for command in commands])
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, words], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        found = [set(json.loads(line[7:])) for line in done.stdout.splitlines() if line.startswith("LOADED ")]
        assert len(found) == len(commands)
        return found

    return loaded
