"""`distdoctor lint` as users call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

SICK = """\
import torch
import torch.distributed as dist


def run(sampler, epochs, rank):
    for epoch in range(epochs):
        sampler.set_epoch(epochs)
    if rank == 0:
        dist.barrier()
"""

GROWS = """\
def train(loader, model, optimizer):
    total = 0
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step()
        total += loss
    return total
"""  # .detach() is put behind it

Lint = Callable[..., Any]


@pytest.fixture
def lint(say: Callable[..., Any]) -> Lint:
    """`distdoctor lint ARGS` in tmp_path: its exit code, output and errors."""
    return lambda *arguments, given="": say("lint", *arguments, given=given)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SICK)
    return tmp_path


def test_a_finding_has_its_code_line_reason_and_fix(lint: Lint, folder: Path) -> None:
    done = lint("train.py")

    assert done.code == 1
    assert done.out.splitlines()[0] == (
        "DD112 error    train.py:9 run  only ranks for which `rank == 0` is true reach barrier (likely)"
    )
    assert "  more  distdoctor explain DD112" in done.out
    assert done.out.endswith("1 error, 1 warning in 1 file\n")


def test_the_exit_code_follows_fail_on(lint: Lint, folder: Path) -> None:
    assert lint("--select", "DD302", ".").code == 0
    assert lint("--select", "DD302", "--fail-on", "warning", ".").code == 1
    assert lint("--fail-on", "never", ".").code == 0


def test_wrong_use_and_nothing_to_inspect_have_their_own_exit_codes(lint: Lint) -> None:
    missing = lint("gone.py")
    assert (missing.code, missing.err) == (
        2,
        "distdoctor: there is no file gone.py\n  Give files, folders, or - for standard input.\n",
    )
    assert lint(".").code == 4
    assert lint("--select", "DD999", ".").code == 2


def test_the_patch_is_one_that_git_apply_takes(lint: Lint, folder: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    patch = lint("--diff", ".").out

    subprocess.run(["git", "apply", "-"], cwd=folder, input=patch, text=True, check=True)

    assert "set_epoch(epoch)" in (folder / "train.py").read_text()


def test_fix_writes_what_diff_shows_and_reports_what_is_left(lint: Lint, folder: Path) -> None:
    done = lint("--fix", ".")

    assert (folder / "train.py").read_text() == SICK.replace("set_epoch(epochs)", "set_epoch(epoch)")
    assert "distdoctor: 1 edit in 1 file" in done.err
    assert "DD302" not in done.out
    assert "DD112" in done.out


def test_line_ends_and_encodings_survive_a_fix(lint: Lint, tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\r\n# caf\xe9\r\n" + SICK.replace("\n", "\r\n")
    (tmp_path / "train.py").write_bytes(text.encode("latin-1"))

    lint("--fix", ".")

    assert (tmp_path / "train.py").read_bytes() == text.replace("(epochs)\r", "(epoch)\r").encode("latin-1")


def test_a_file_for_whose_fix_there_is_no_room_is_as_it_was(tmp_path: Path) -> None:
    grows = "import torch  # ".ljust(1019 - len(GROWS), "x") + "\n" + GROWS  # 1,020 bytes of 1,024
    (tmp_path / "train.py").write_text(grows)

    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 1; exec {sys.executable} -m distdoctor lint --fix ."],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
        },  # Python takes a bytecode file that was cut off for a whole one
        capture_output=True,
        text=True,
        check=False,
    )

    assert "train.py was not written: " in done.stderr
    assert (tmp_path / "train.py").read_text() == grows


def test_a_fix_keeps_the_mode_and_the_links_of_a_file(lint: Lint, folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").chmod(0o750)
    os.link(folder / "train.py", tmp_path / "same")

    lint("--fix", ".")

    assert (folder / "train.py").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "same").read_text() == (folder / "train.py").read_text() != SICK


def test_the_name_of_a_file_may_be_any_bytes(lint: Lint, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.py")).write_text(SICK)

    done = lint(".", "--output-format", "sarif")

    assert done.code == 1
    assert '"uri": "caf%E9.py"' in done.out


def test_standard_input_without_end_is_not_read(lint: Lint) -> None:
    done = lint("-", given=SICK + "#" * (2 << 20))

    assert (done.code, done.out) == (5, "no findings in 0 files; 1 not read\n")
    assert "distdoctor: <stdin> was not read: it has more than 2 MiB" in done.err


def test_standard_input_is_read_and_cannot_be_fixed(lint: Lint) -> None:
    assert "<stdin>:9 run" in lint("-", given=SICK).out
    assert lint("--fix", "-", given=SICK).code == 2


@pytest.mark.parametrize("comment", ["DD112", "dd112", "rank-conditional-collective", "DD302, DD112"])
def test_a_comment_on_the_line_accepts_a_finding(lint: Lint, tmp_path: Path, comment: str) -> None:
    line = f"dist.barrier()  # distdoctor: ignore[{comment}] -- only one rank runs this script"
    (tmp_path / "train.py").write_text(SICK.replace("dist.barrier()", line))

    done = lint("--select", "DD112", ".")

    assert (done.code, done.out) == (0, "no findings in 1 file; 1 suppressed\n")


def test_what_is_no_python_is_one_sentence_and_the_rest_goes_on(lint: Lint, folder: Path) -> None:
    (folder / "broken.py").write_text("import torch\ndef f(:\n")
    (folder / "binary.py").write_bytes(b"import torch\n\xff\xfe")

    done = lint(".")

    assert done.code == 1
    assert "DD112" in done.out
    assert "distdoctor: broken.py:2 is no Python: invalid syntax\n" in done.err
    assert "distdoctor: binary.py was not read: " in done.err
    assert "Traceback" not in done.err


def test_only_what_cannot_be_read_is_not_called_healthy(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import torch\ndef f(:\n")

    done = lint(".")

    assert (done.code, done.out) == (5, "no findings in 0 files; 1 not read\n")


def test_json_sarif_and_github_carry_the_same_findings(lint: Lint, folder: Path) -> None:
    document = json.loads(lint("--output-format", "json", ".").out)
    assert [(f["code"], f["confidence"], f["place"]["line"]) for f in document["findings"]] == [
        ("DD112", "likely", 9),
        ("DD302", "likely", 7),
    ]
    sarif = json.loads(lint("--output-format", "sarif", ".").out)
    assert [result["ruleId"] for result in sarif["runs"][0]["results"]] == ["DD112", "DD302"]
    assert lint("--output-format", "github", ".").out.startswith("::error file=train.py,line=9,title=DD112")


def test_hidden_folders_and_virtual_environments_are_left_out(lint: Lint, tmp_path: Path) -> None:
    for place in (".tox", "env", "pkg"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "train.py").write_text(SICK)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")

    assert lint("--fail-on", "never", ".").out.endswith("in 1 file\n")


def test_the_page_of_an_illness_that_only_the_source_shows_is_explained(say: Callable[..., Any]) -> None:
    done = say("explain", "dd701")

    assert done.out.startswith("DD701 saved-wrapper: ")


@pytest.mark.job
def test_lint_loads_no_torch(folder: Path) -> None:
    code = (
        "import sys; sys.argv = ['distdoctor', 'lint', '.']\n"
        "from distdoctor.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    assert 'torch' not in sys.modules, 'torch was imported'\n"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_flake8_is_given_the_same_findings() -> None:
    import ast

    from distdoctor.lint.flake8 import Plugin

    found = list(Plugin(ast.parse(SICK), "train.py", SICK.splitlines(keepends=True)).run())

    assert [(line, text[:5]) for line, _, text, _ in found] == [(9, "DD112"), (7, "DD302")]


def test_flake8_finds_the_plugin_by_its_entry_point() -> None:
    from importlib.metadata import entry_points

    from distdoctor.lint.flake8 import Plugin

    (found,) = [one for one in entry_points(group="flake8.extension") if one.value.startswith("distdoctor.")]

    assert found.name == "DD"
    assert found.load() is Plugin


def test_the_hooks_of_pre_commit_fail_for_a_sick_script_and_pass_a_sound_one(lint: Lint, folder: Path) -> None:
    hooks = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text())
    (folder / "sound.py").write_text("import torch\n")

    assert {hook["id"]: hook["language"] for hook in hooks} == {
        "distdoctor-lint": "python",
        "distdoctor-lint-system": "system",
    }
    assert {hook["entry"] for hook in hooks} == {"distdoctor lint"}
    assert all(hook["require_serial"] for hook in hooks)  # files given together are one program
    assert lint("--fail-on", "warning", "train.py", "sound.py").code == 1
    assert lint("--fail-on", "warning", "sound.py").code == 0


@pytest.mark.parametrize(
    ("loader", "told"),
    [
        ("DataLoader(data, sampler=sampler)", "sampler.set_epoch(epoch)"),
        ("enumerate(DataLoader(data, sampler=DistributedSampler(data)))", ""),
    ],
)
def test_of_a_loader_without_a_name_the_sampler_is_told_the_epoch_or_nothing_is_written(
    lint: Lint, folder: Path, loader: str, told: str
) -> None:
    """`data.sampler` would be an error."""
    text = f"""
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

def train(data, model, optimizer):
    sampler = DistributedSampler(data)
    for epoch in range(3):
        for batch in {loader}:
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
"""
    (folder / "train.py").write_text(text)
    before = "        for batch"

    done = lint("--fix", "--select", "DD301", "train.py")

    assert (folder / "train.py").read_text() == (text.replace(before, f"        {told}\n{before}") if told else text)
    assert ("loader.sampler.set_epoch(epoch)" in done.out) is not bool(told)
