"""`runs`, `diff` and the formats by suffix, on folders that real jobs left; and command lines that are wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from seeds import copy_of, run_folder

from distdoctor.cli.hang_dump import _keep
from distdoctor.cli.looked_at import LookedAt
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.recording.recording import Job
from distdoctor.recording.trace.run_folder import JOB_FILE, job_to_json
from distdoctor.testing.stacks import in_collective, looked_at

Say = Callable[..., Any]
AS_RANK = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}  # its launcher is we, and we go on
WAITS = "import time; print('here'); time.sleep(300)"


@pytest.mark.job
def test_two_runs_part_where_one_has_a_nan(say: Say, tmp_path_factory: pytest.TempPathFactory) -> None:
    healthy, ill = (run_folder(name, tmp_path_factory) for name in ("healthy", "non-finite"))

    same, other = say("diff", healthy, healthy, "--slower-by", 1), say("diff", healthy, ill, "--output-format", "json")

    rows = {row["what"]: row for row in json.loads(other.out)["compared"]}
    assert (same.code, "≠" in same.out) == (0, False)
    assert "equal to the last bit" in same.out
    assert (rows["ranks"]["equal"], rows["loss"]["equal"], rows["gradients"]["equal"]) == (True, False, False)
    assert "differ from step" in rows["gradients"]["words"]


@pytest.mark.job
def test_a_limit_on_what_was_not_recorded_is_not_kept(
    say: Say, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    healthy, failed = run_folder("healthy", tmp_path_factory), tmp_path / "failed"
    failed.mkdir()
    (failed / JOB_FILE).write_text(job_to_json(Job(world_size=2, exit_code=1)))

    text, as_json = (
        say("diff", healthy, failed, "--slower-by", 50, *more) for more in ((), ("--output-format", "json"))
    )

    assert (text.code, as_json.code) == (5, 5)
    assert "step time could not be compared, so the limit was not checked" in text.err
    assert json.loads(as_json.out)["unknown"] == ["step time"]


@pytest.mark.job
def test_runs_are_listed_with_their_verdict_and_pruned(
    say: Say, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for number, name in enumerate(("healthy", "non-finite")):
        copy_of(
            run_folder(name, tmp_path_factory), tmp_path / ".distdoctor" / "runs" / f"2026010{number}T120000-{name}"
        )

    listed, by_name = say("runs"), say("report", "20260101T120000-non-finite")
    pruned = say("runs", "--prune", "--keep", 1)

    assert "DD801" in by_name.out
    assert "DD801" in listed.out
    assert "2026-01-01 12:00" in listed.out
    assert [line[:4] for line in listed.out.splitlines()[:3]] == ["run ", "2026", "2026"]  # names, to the left
    assert "1 run removed" in pruned.err
    assert len(list((tmp_path / ".distdoctor" / "runs").iterdir())) == 1


@pytest.mark.job
def test_the_suffix_of_the_file_says_which_format(
    say: Say, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = run_folder("healthy", tmp_path_factory)
    for name in ("r.html", "r.json", "r.sarif", "r.trace.json", "r.xml"):
        assert say("report", folder, "-o", tmp_path / name).code == 0

    document, trace = (json.loads((tmp_path / name).read_text()) for name in ("r.json", "r.trace.json"))
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert [one["rank"] for one in document["step_times"]] == [0, 1]
    assert {"step_times", "loss", "coverage", "memory"} <= {table["name"] for table in document["tables"]}
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X", "C"}
    assert min(event["ts"] for event in trace["traceEvents"] if "ts" in event) >= 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check-data", "--loader", "foo"], "--loader foo names no function"),
        (["check-data", "--loader", "nowhere.at.all:make"], "there is no module nowhere.at.all"),
        (["check-data", "--loader", "mine:other"], "mine.py has no other"),
        (["report", "-o", "x.bogus"], "x.bogus names no report format by its suffix"),
        (["run", "-o", "x.bogus", "mine.py"], "x.bogus names no report format by its suffix"),
        (["examine", "--ignore", "DD999"], "--ignore DD999: there is no such check"),
        (["run", "--nproc", "0", "mine.py"], "--nproc 0 on 1 node(s) starts no rank"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_with_a_way_out(
    say: Say, tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "mine.py").write_text("def make():\n    return []\n")

    found = say(*words)

    assert found.code == 2
    assert said in found.err
    assert len(found.err.splitlines()) == 2


def test_the_help_of_run_fits_two_screens_and_torchruns_own_options_are_asked_for(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, torchrun, training = (
        say("run", "--help"),
        say("run", "--help-torchrun"),
        say("run", "--strategy", "ddp", "--help"),
    )

    assert len(short.out.splitlines()) <= 48
    ours = short.out + training.out.partition("torchrun: ranks")[0]
    options = [line[2:].split("  ")[0] for line in ours.splitlines() if line[:1] == "│"]
    assert [words for words in options if words[:1] not in ("-", "")] == []  # no name of an option is broken
    assert short.out.index("--nproc") < short.out.index("--strategy ")
    assert "--rdzv-backend" not in short.out
    assert "--rdzv-backend" in torchrun.out
    assert "--batch-size" not in torchrun.out
    assert "--batch-size" in training.out


@pytest.mark.job
def test_what_a_baseline_holds_is_accepted(say: Say, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    ill = run_folder("non-finite", tmp_path_factory)
    say("report", ill, "-o", tmp_path / "baseline.json")

    before, after = say("examine", ill), say("examine", ill, "--baseline", tmp_path / "baseline.json")

    assert "DD801" in before.out
    assert not [line for line in after.out.splitlines() if line.startswith("DD")]
    assert "suppressed: " in after.out
    assert say("examine", ill, "--baseline", ill / "request.json").code == 2


@pytest.mark.job
def test_what_a_baseline_holds_is_not_told_while_the_job_runs_either(say: Say, tmp_path: Path) -> None:
    drill = ("run", "--strategy", "ddp", "--nproc", 2, "--fire-drill", "missing-set-epoch", "--fail-on", "warning")
    drill += ("--epochs", 16)  # ten seconds and more: two epochs are over before anybody has looked

    before = say(*drill, "-o", tmp_path / "baseline.json")
    after = say(*drill, "--baseline", tmp_path / "baseline.json")

    assert (before.code, after.code) == (1, 0)
    assert "DD301 warning" in before.err  # while it ran: the report went to the file
    assert "DD301 warning" not in after.out + after.err


def test_a_misspelt_slug_gets_a_guess_and_a_code_none(say: Say) -> None:
    assert "Did you mean missing-set-epoch?" in say("examine", "--ignore", "missing-set-epcoh").err
    assert "Did you mean" not in say("examine", "--ignore", "DD999").err


def test_a_job_that_hang_dump_looked_at_does_not_run_for_ever(say: Say) -> None:
    with subprocess.Popen([sys.executable, "-u", "-c", WAITS], stdout=subprocess.PIPE, env=AS_RANK) as process:
        assert process.stdout is not None
        process.stdout.readline()
        dump, before = say("hang-dump", "--pid", process.pid), say("runs")
        process.kill()

    assert dump.code in (0, 3)
    assert "still runs" in before.out
    assert "its end was not seen" in say("runs").out
    assert ", running" not in say("show").out


@pytest.mark.parametrize("running", [True, False])
def test_a_run_that_goes_on_stays_the_latest_when_another_job_is_looked_at(
    say: Say, tmp_path: Path, running: bool
) -> None:
    runs = tmp_path / ".distdoctor" / "runs"
    (runs / "20260101T000000-train").mkdir(parents=True)
    (runs / "20260101T000000-train" / JOB_FILE).write_text(job_to_json(Job(("run", "train.py"), running=running)))
    (runs / "latest").symlink_to("20260101T000000-train")
    with subprocess.Popen([sys.executable, "-u", "-c", WAITS], stdout=subprocess.PIPE, env=AS_RANK) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # Twice: what the first look has kept is no run that is recorded.
        looks = [say("hang-dump", "--pid", process.pid) for _ in range(2)]
        process.kill()

    kept = f"hang-dump-{os.getpid()}"  # by the launcher
    assert [look.err for look in looks] == [f"distdoctor: what was seen is kept: distdoctor report {kept}\n"] * 2
    assert (runs / "latest").resolve().name == ("20260101T000000-train" if running else kept)
    assert say("report", kept).code == 0


def test_of_several_jobs_that_were_looked_at_the_worst_is_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = looked_at(in_collective(0), in_collective(1))
    for number, latest in ((7, True), (8, False)):
        _keep(LookedAt("torchrun train.py", (), number), Diagnosis(seen.job), seen, latest=latest)
    not_started = replace(seen, stacks=replace(seen.stacks, ranks={})) if seen.stacks else seen
    _keep(LookedAt("torchrun train.py", (), 9), Diagnosis(not_started.job), not_started, latest=True)

    runs = tmp_path / ".distdoctor" / "runs"
    assert sorted(one.name for one in runs.iterdir()) == ["hang-dump-7", "hang-dump-8", "latest"]
    assert (runs / "latest").resolve().name == "hang-dump-7"
