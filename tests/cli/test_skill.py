"""What the skill tells a coding agent to type works, and the fields that it names are there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distdoctor.cli.skill import PLACE, SOURCE

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "forgotten_set_epoch.py"
ENDS = {"hang-dump": {0, 1, 3, 4}}  # whatever else runs on this host


def _commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", SOURCE.read_text("utf-8"), re.S)
    return [line for block in blocks for line in block.splitlines() if line.startswith("distdoctor ")]


def _distdoctor(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "distdoctor", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_the_skill_is_installed_once_and_never_overwrites_changes(tmp_path: Path) -> None:
    assert _distdoctor(tmp_path, "skill", "install").returncode == 0
    assert (tmp_path / PLACE).read_text("utf-8") == SOURCE.read_text("utf-8")
    assert _distdoctor(tmp_path, "skill", "install").returncode == 0

    (tmp_path / PLACE).write_text("mine")
    refused = _distdoctor(tmp_path, "skill", "install")

    assert refused.returncode == 2
    assert "differs" in refused.stderr
    assert "--force replaces it" in refused.stderr
    assert _distdoctor(tmp_path, "skill", "install", "--force").returncode == 0


@pytest.mark.job
@pytest.mark.slow
def test_every_command_of_the_skill_works(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path / "train.py")
    for command in _commands():
        words = command.split()[1:]
        if words[0].startswith(
            "check-"
        ):  # jobs of ten seconds each, which have tests of their own: their options are enough
            words.insert(words.index("train.py"), "--help")
        done = _distdoctor(tmp_path, *words)
        assert done.returncode in ENDS.get(words[0], {0, 1}), f"{command}\n{done.stdout}{done.stderr}"

    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [finding["code"] for finding in report["findings"]] == ["DD301"]
    assert {"verdict", "state", "not_examined"} <= report.keys()
    assert {"code", "ranks", "title", "place", "confidence", "remedies"} <= report["findings"][0].keys()
    assert {"what", "change", "effect"} <= report["findings"][0]["remedies"][0].keys()
