"""Thirty-six secrets of one job are in no file of its run folder, in no bundle and in no report."""

from __future__ import annotations

import lzma
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Finished

from distdoctor.recording.bundle import MAGIC

JOB = Path(__file__).parents[1] / "jobs" / "secretive.py"
CANARY = re.compile(rb"canary\d\d_Zq3x9PmK2")
FORMATS = ("text", "json", "sarif", "junit", "github", "html", "trace")


def canary(number: int) -> str:
    return f"canary{number:02d}_Zq3x9PmK2"


ARGUMENTS = [
    "--token", canary(1), f"--api-key={canary(2)}", "--db", f"postgres://u:{canary(3)}@db/x",
    "--data", f"s3://reader:{canary(4)}@bucket/train", "--password", canary(5), f"--config={{'secret': '{canary(6)}'}}",
    "--hub-token", canary(7), "--url", f"https://h.example/x?access_token={canary(8)}&n=1",
    "--notify", f"https://hooks.slack.com/services/T01/B02/{canary(31)}", "-u", f"bot:{canary(32)}",
]  # fmt: skip
VARIABLES = {
    "AWS_SECRET_ACCESS_KEY": canary(9),
    "HF_TOKEN": canary(10),
    "NCCL_AUTH": canary(11),
    "TORCH_PASSWD": canary(12),
    "WANDB_API_KEY": canary(13),
    "DATABASE_URL": f"postgres://u:{canary(14)}@db/x",
    "TORCH_PROXY": f"http://u:{canary(15)}@proxy:3128",
    "TORCH_HUB_URL": f"https://{canary(24)}@models.example/hub",
}


def names(folder: Path) -> list[str]:
    """The files below `folder` that hold a canary, with which."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if data.startswith(MAGIC):
                data = lzma.decompress(data[len(MAGIC) + 1 :])
            found += [f"{path.name}: {told.decode()}" for told in sorted(set(CANARY.findall(data)))]
    return found


@pytest.mark.job
def test_thirty_six_secrets_are_in_no_file_bundle_or_report(
    distdoctor: Callable[..., Finished], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(JOB.read_text())

    done = distdoctor("run", "--nproc", 2, "--run-dir", "seen/run", "train.py", *ARGUMENTS, env=VARIABLES)

    assert done.code == 1
    assert "401 for https://files.example/a?access_token=[redacted]" in done.out
    (tmp_path / "seen" / "out.txt").write_text(done.out)
    from distdoctor.cli.main import main

    monkeypatch.chdir(tmp_path / "seen")
    commands = [["report", "--output-format", name, "-o", f"report.{name}"] for name in FORMATS]
    commands += [["bundle", "-o", "host.ddb"], ["examine", "-o", "examined.json", "--output-format", "json"]]
    for words in commands:
        with pytest.raises(SystemExit):
            main([words[0], "run", *words[1:]])
    written = {path.name for path in (tmp_path / "seen").iterdir()}
    assert written >= {*(f"report.{name}" for name in FORMATS), "host.ddb", "examined.json"}
    assert names(tmp_path / "seen") == []
