"""Commands that train nothing: quick, without torch, and helpful when mistyped."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from distdoctor.cli.main import COMMANDS
from distdoctor.recording.files import write_whole
from distdoctor.recording.recording import Job
from distdoctor.recording.trace.run_folder import JOB_FILE, job_to_json

Say = Callable[..., object]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run that ended well, as its job.json says; its ranks left no traces."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_whole(folder / JOB_FILE, job_to_json(Job(argv=("train.py",), world_size=2, exit_code=0)))
    return folder


QUICK = (
    ["--help"],
    ["--version"],
    ["rules"],
    ["rules", "--output-format", "markdown"],
    ["explain", "DD101"],
    ["strategies"],
    ["schema"],
    ["examine", "--help"],
    ["report", "--help"],
)


@pytest.mark.job
def test_they_answer_without_torch(modules_after: Callable[..., list[set[str]]]) -> None:
    loaded = dict(zip(map(" ".join, QUICK), modules_after(*QUICK), strict=True))

    assert [words for words, modules in loaded.items() if "click" not in modules or "torch" in modules] == []
    assert not loaded["--help"] & {"numpy", "pluggy", "msgspec", "networkx", "distdoctor_checks"}


@pytest.mark.job
def test_a_recording_is_read_without_torch(modules_after: Callable[..., list[set[str]]], run_folder: Path) -> None:
    commands = ("examine", "report", "show")

    loaded = dict(zip(commands, modules_after(*((command, run_folder) for command in commands)), strict=True))

    assert [command for command, modules in loaded.items() if "torch" in modules] == []


def test_every_command_is_listed_with_one_sentence(say: Say) -> None:
    said = say("--help")

    assert said.code == 0
    for name in COMMANDS:
        assert f" {name} " in said.out


@pytest.mark.parametrize(
    ("words", "message", "way_out"),
    [
        (["rums"], "there is no command rums", "Did you mean runs?"),
        (["xyz"], "there is no command xyz", "`distdoctor --help` lists them."),
        (["explain", "DD31"], "there is no check DD31", "`distdoctor rules` lists them."),
        (["examine", "--fail-on", "errors"], None, None),
        (["run", "--nprocs", "2", "x.py"], "there is no option --nprocs", "Did you mean --nproc?"),
        (["run", "--stratgy", "ddp"], "there is no option --stratgy", "Did you mean --strategy?"),
        (["run", "--strategy", "dpp"], "there is no strategy dpp", None),
        (["run", "--strategy", "ddp", "--epoch", "2"], "there is no option --epoch", "Did you mean --epochs?"),
        (["run", "--strategy", "single", "--by-hand"], "there is no option --by-hand", None),
        (["run", "no-such.py"], "there is no script no-such.py", None),
        (["run"], "nothing to run", None),
        (["run", "--"], "no launcher follows `--`", None),
        (
            ["run", "--nproc", "2", "--", "torchrun", "x.py"],
            "--nproc-per-node=2 stands before `--`, which starts",
            None,
        ),
        (["run", "--nproc", "many", "--strategy", "ddp"], "Unsupported nproc_per_node value: many", None),
        (["run", "--strategy", "ddp", "train.py"], "both --strategy ddp and train.py are asked for", None),
        (["run", "--epochs", "2", "x.py"], "--epochs without --strategy", None),
        (["run", "--strategy", "ddp", "--backend", "mpi"], "DD602: --backend mpi needs a torch", None),
        (
            ["run", "--strategy", "ddp", "--nproc", "1", "--fire-drill", "rank-died"],
            "needs 2 ranks, and there are 1",
            None,
        ),
        (
            ["run", "--strategy", "ddp", "--nproc", "2", "--fire-drill", "rank-dead"],
            "there is no fire drill rank-dead",
            None,
        ),
        (["run", "--streams", "colectives", "x.py"], None, None),
        (["run", "--output-format", "jsn", "x.py"], "there is no report format jsn", "Did you mean json? There are"),
        (
            ["run", "--strategy", "ddp", "--batch-size", "3", "--nproc", "2"],
            "a batch of 3 samples does not divide",
            None,
        ),
        (["run", "--start-method", "vfork", "x.py"], "argument --start-method/--start_method: invalid choice", None),
        (["rules", "--no-plugin", "nobody"], "no plugin is called nobody", None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_two_lines_and_exit_code_2(
    say: Say, words: list[str], message: str | None, way_out: str | None
) -> None:
    said = say(*words)

    lines = said.err.splitlines()
    assert said.code == 2
    assert said.out == ""
    assert len(lines) == 2
    assert lines[0].startswith("distdoctor: ")
    assert message is None or message in lines[0]
    assert way_out is None or way_out in lines[1]


@pytest.mark.parametrize("name", ["DD601", "dd602", "more-ranks-than-devices"])
def test_what_an_error_names_can_be_explained(say: Say, name: str) -> None:
    done = say("explain", name)

    assert done.code == 0
    assert name.lower() in done.out.lower()
    assert "What to do" in done.out


def test_explain_prints_the_page_of_the_handbook_by_code_and_by_slug(say: Say) -> None:
    by_code, by_slug = say("explain", "dd110"), say("explain", "rank-died")

    assert by_code.code == 0
    assert by_code.out.startswith("DD110 rank-died: ")
    assert "What to do" in by_code.out
    assert by_slug.out == by_code.out


def test_the_table_of_checks_has_a_row_for_each(say: Say) -> None:
    table = say("rules", "--output-format", "markdown").out
    checks = json.loads(say("rules", "--output-format", "json").out)

    rows = table.splitlines()[2:]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [check["code"] for check in checks]
    assert all(check["headline"] for check in checks)


def test_a_blocked_plugin_offers_nothing_and_is_listed_as_blocked(say: Say) -> None:
    said = say("plugins", "--no-plugin", "drills")

    assert "distdoctor_drills  blocked" in said.out
    assert "0 drills" in said.out


def test_the_drills_are_a_line_each_by_family_and_one_that_is_named_says_what_to_expect(say: Say) -> None:
    from distdoctor import plugins

    drills = sorted(plugins.load().drills.values(), key=lambda drill: (drill.code, drill.slug))
    listed = say("run", "--fire-drill", "list").out.splitlines()
    told = say("run", "--fire-drill", "list", *(drill.slug for drill in drills[:-1]), drills[-1].code.lower()).out

    assert [line.split()[:2] for line in listed if line[:1] == " "] == [[drill.slug, drill.code] for drill in drills]
    assert listed[0] == "collectives and hangs"
    assert all(drill.expect in told and drill.summary in "\n".join(listed) for drill in drills)


def test_the_drills_of_a_strategy_are_those_that_can_be_planted_there_and_a_misspelt_one_gets_a_guess(say: Say) -> None:
    assert "pipeline-bubble" not in say("run", "--strategy", "ddp", "--fire-drill", "list").out
    assert "Did you mean growing-memory?" in say("run", "--fire-drill", "list", "growing-memry").err


def test_nothing_to_examine_is_exit_code_4(say: Say, tmp_path: Path) -> None:
    said = say("examine", tmp_path)

    assert said.code == 4
    assert len(said.err.splitlines()) == 2
    assert str(tmp_path) in said.err


def test_a_run_without_a_recording_is_not_called_healthy(say: Say, run_folder: Path) -> None:
    assert "healthy" not in say("examine", run_folder).out


def test_the_latest_run_of_the_working_directory_is_meant_when_none_is_named(say: Say, run_folder: Path) -> None:
    runs = run_folder.parent / ".distdoctor" / "runs"
    runs.mkdir(parents=True)
    shutil.move(run_folder, runs / "20260101T000000-train")
    (runs / "latest").symlink_to("20260101T000000-train")

    said = say("show")

    assert said.code == 0
    assert said.out.splitlines()[0].endswith("runs/20260101T000000-train")


def test_a_report_is_written_where_it_is_asked_for(say: Say, run_folder: Path, tmp_path: Path) -> None:
    said = say("report", run_folder, "--output-format", "json", "-o", tmp_path / "out.json")

    assert said.code == 0
    assert said.out == ""
    assert json.loads((tmp_path / "out.json").read_text())["job"]["argv"] == ["train.py"]


def test_a_report_that_cannot_be_written_is_wrong_use(say: Say, run_folder: Path, tmp_path: Path) -> None:
    said = say("report", run_folder, "-o", tmp_path / "missing" / "out.json")

    assert said.code == 2
    assert "No such file or directory" in said.err


def test_the_environment_is_printed_for_a_bug_report(say: Say) -> None:
    facts = json.loads(say("env", "--json", "--within", "60").out)

    assert "gloo" in facts["backends"]
    assert facts["not_told"] == []
    wanted = {
        "torch",
        "cuda",
        "nccl",
        "driver",
        "gpus",
        "gpu_links",
        "nics",
        "infiniband",
        "cgroup",
        "shm_gib",
        "limits",
        "ptrace",
    }
    assert wanted | {"ptrace", "clocks", "container", "scheduler", "variables", "libraries"} <= facts.keys()
    assert (facts["torch"], facts["limits"]["nofile"]) == (
        metadata.version("torch"),
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    assert "lo" in {one["name"] for one in facts["nics"]}
    assert facts["libraries"]["numpy"]


@pytest.mark.job
def test_torchs_compiled_half_tells_what_the_whole_tells() -> None:
    from distdoctor.cli.bug_report import _ASK_TORCH

    def told(source: str, *words: str) -> dict[str, Any]:
        command = [sys.executable, "-P", "-c", source, *words]
        found: dict[str, Any] = json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))
        return found

    whole = told(_ASK_TORCH, "whole")
    broken = told(_ASK_TORCH.replace("    import torch._C\n", "    import torch._C.gone\n"))

    assert told(_ASK_TORCH) == whole == broken
    assert (whole["backends"][0], whole["threads"]) == ("gloo", torch.get_num_threads())


def test_a_module_in_the_working_directory_is_not_taken_for_one_of_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    (tmp_path / "json.py").write_text("open('was-run', 'w').close()\n")
    monkeypatch.chdir(tmp_path)

    assert json.loads(say("env", "--json", "--within", "60").out)["not_told"] == []
    assert not (tmp_path / "was-run").exists()


def test_a_driver_that_hangs_is_named_and_holds_nobody_up(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "hidden")
    since = time.monotonic()

    said = say("env", "--json", "--within", "0.5")

    facts = json.loads(said.out)
    assert time.monotonic() - since < 5
    assert "gpus (no answer within 0.5 s)" in facts["not_told"]
    assert (facts["torch"], facts["gpus"]) == (metadata.version("torch"), [])
    assert facts["variables"]["NCCL_DEBUG"] == "INFO"
    assert "hidden" not in said.out
    assert "cgroup memory.max" in say("env", "--within", "0.1").out


def test_a_bundle_shows_what_its_run_folder_shows(say: Say, run_folder: Path, tmp_path: Path) -> None:
    assert say("bundle", run_folder, "-o", tmp_path / "host.ddb").code == 0

    folder, bundle = (say("show", path).out.splitlines() for path in (run_folder, tmp_path / "host.ddb"))

    assert [line for line in bundle if line.startswith("checks ")]
    assert bundle[1:] == folder[1:]


def test_ctrl_c_while_the_command_is_imported_is_no_traceback() -> None:
    """Sent as soon as the first of its modules is opened, by a hook that runs before it."""
    source = (
        "import os, runpy, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whoever runs the tests may have it ignored
        "sys.addaudithook(lambda event, words: event == 'import' and words[0] == 'rich_click'"
        " and os.kill(os.getpid(), signal.SIGINT))\n"
        "runpy.run_module('distdoctor', run_name='__main__')\n"
    )

    done = subprocess.run([sys.executable, "-c", source, "--help"], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout, done.stderr) == (-2, "", "")
