"""What the skill tells a coding agent to type works, and the fields that it names are there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Said

from distdoctor.cli.skill import PLACE, SOURCE

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "forgotten_set_epoch.py"
ENDS = {"hang-dump": {0, 1, 3, 4}}  # whatever else runs on this host


def _commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", SOURCE.read_text("utf-8"), re.S)
    return [line for block in blocks for line in block.splitlines() if line.startswith("distdoctor ")]


def test_the_skill_is_installed_once_and_never_overwrites_changes(tmp_path: Path, say: Callable[..., Said]) -> None:
    assert say("skill", "install").code == 0
    assert (tmp_path / PLACE).read_text("utf-8") == SOURCE.read_text("utf-8")
    assert say("skill", "install").code == 0

    (tmp_path / PLACE).write_text("mine")
    refused = say("skill", "install")

    assert refused.code == 2
    assert "differs" in refused.err
    assert "--force replaces it" in refused.err
    assert say("skill", "install", "--force").code == 0


@pytest.mark.job
@pytest.mark.slow
def test_every_command_of_the_skill_works(tmp_path: Path, say: Callable[..., Said]) -> None:
    shutil.copy(EXAMPLE, tmp_path / "train.py")
    for command in _commands():
        words = command.split()[1:]
        if words[0].startswith(
            "check-"
        ):  # jobs of ten seconds each, which have tests of their own: their options are enough
            words.insert(words.index("train.py"), "--help")
        done = say(*words)
        assert done.code in ENDS.get(words[0], {0, 1}), f"{command}\n{done.out}{done.err}"

    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [finding["code"] for finding in report["findings"]] == ["DD301"]
    assert {"verdict", "state", "not_examined"} <= report.keys()
    assert {"code", "ranks", "title", "place", "confidence", "remedies"} <= report["findings"][0].keys()
    assert {"what", "change", "effect"} <= report["findings"][0]["remedies"][0].keys()
