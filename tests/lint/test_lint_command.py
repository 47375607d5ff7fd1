"""`distdoctor lint` as users call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SICK = """\
import torch
import torch.distributed as dist


def run(sampler, epochs, rank):
    for epoch in range(epochs):
        sampler.set_epoch(epochs)
    if rank == 0:
        dist.barrier()
"""


def lint(*arguments: str, cwd: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "distdoctor", "lint", *arguments]
    return subprocess.run(command, cwd=cwd, input=given, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SICK)
    return tmp_path


def test_a_finding_has_its_code_line_reason_and_fix(folder: Path) -> None:
    done = lint("train.py", cwd=folder)

    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == (
        "DD112 error    train.py:9 run  only ranks for which `rank == 0` is true reach barrier (likely)"
    )
    assert "  more  distdoctor explain DD112" in done.stdout
    assert done.stdout.endswith("1 error, 1 warning in 1 file\n")


def test_the_exit_code_follows_fail_on(folder: Path) -> None:
    assert lint("--select", "DD302", ".", cwd=folder).returncode == 0
    assert lint("--select", "DD302", "--fail-on", "warning", ".", cwd=folder).returncode == 1
    assert lint("--fail-on", "never", ".", cwd=folder).returncode == 0


def test_wrong_use_and_nothing_to_inspect_have_their_own_exit_codes(tmp_path: Path) -> None:
    missing = lint("gone.py", cwd=tmp_path)
    assert (missing.returncode, missing.stderr) == (
        2,
        "distdoctor: there is no file gone.py\n  Give files, folders, or - for standard input.\n",
    )
    assert lint(".", cwd=tmp_path).returncode == 4
    assert lint("--select", "DD999", ".", cwd=tmp_path).returncode == 2


def test_the_patch_is_one_that_git_apply_takes(folder: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    patch = lint("--diff", ".", cwd=folder).stdout

    subprocess.run(["git", "apply", "-"], cwd=folder, input=patch, text=True, check=True)

    assert "set_epoch(epoch)" in (folder / "train.py").read_text()


def test_fix_writes_what_diff_shows_and_reports_what_is_left(folder: Path) -> None:
    done = lint("--fix", ".", cwd=folder)

    assert (folder / "train.py").read_text() == SICK.replace("set_epoch(epochs)", "set_epoch(epoch)")
    assert "distdoctor: 1 edit in 1 file" in done.stderr
    assert "DD302" not in done.stdout
    assert "DD112" in done.stdout


def test_line_ends_and_encodings_survive_a_fix(tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\r\n# caf\xe9\r\n" + SICK.replace("\n", "\r\n")
    (tmp_path / "train.py").write_bytes(text.encode("latin-1"))

    lint("--fix", ".", cwd=tmp_path)

    assert (tmp_path / "train.py").read_bytes() == text.replace("(epochs)\r", "(epoch)\r").encode("latin-1")


def test_standard_input_is_read_and_cannot_be_fixed(tmp_path: Path) -> None:
    assert "<stdin>:9 run" in lint("-", cwd=tmp_path, given=SICK).stdout
    assert lint("--fix", "-", cwd=tmp_path, given=SICK).returncode == 2


@pytest.mark.parametrize("comment", ["DD112", "dd112", "rank-conditional-collective", "DD302, DD112"])
def test_a_comment_on_the_line_accepts_a_finding(tmp_path: Path, comment: str) -> None:
    line = f"dist.barrier()  # distdoctor: ignore[{comment}] -- only one rank runs this script"
    (tmp_path / "train.py").write_text(SICK.replace("dist.barrier()", line))

    done = lint("--select", "DD112", ".", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (0, "no findings in 1 file; 1 suppressed\n")


def test_what_is_no_python_is_one_sentence_and_the_rest_goes_on(folder: Path) -> None:
    (folder / "broken.py").write_text("import torch\ndef f(:\n")
    (folder / "binary.py").write_bytes(b"import torch\n\xff\xfe")

    done = lint(".", cwd=folder)

    assert done.returncode == 1
    assert "DD112" in done.stdout
    assert "distdoctor: broken.py:2 is no Python: invalid syntax\n" in done.stderr
    assert "distdoctor: binary.py was not read: " in done.stderr
    assert "Traceback" not in done.stderr


def test_only_what_cannot_be_read_is_not_called_healthy(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import torch\ndef f(:\n")

    assert lint(".", cwd=tmp_path).returncode == 5


def test_json_sarif_and_github_carry_the_same_findings(folder: Path) -> None:
    document = json.loads(lint("--output-format", "json", ".", cwd=folder).stdout)
    assert [(f["code"], f["confidence"], f["place"]["line"]) for f in document["findings"]] == [
        ("DD112", "likely", 9),
        ("DD302", "likely", 7),
    ]
    sarif = json.loads(lint("--output-format", "sarif", ".", cwd=folder).stdout)
    assert [result["ruleId"] for result in sarif["runs"][0]["results"]] == ["DD112", "DD302"]
    assert lint("--output-format", "github", ".", cwd=folder).stdout.startswith(
        "::error file=train.py,line=9,title=DD112"
    )


def test_hidden_folders_and_virtual_environments_are_left_out(tmp_path: Path) -> None:
    for place in (".tox", "env", "pkg"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "train.py").write_text(SICK)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")

    assert lint("--fail-on", "never", ".", cwd=tmp_path).stdout.endswith("in 1 file\n")


def test_the_page_of_an_illness_that_only_the_source_shows_is_explained(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "distdoctor", "explain", "dd701"], capture_output=True, text=True, cwd=tmp_path
    )

    assert done.stdout.startswith("DD701 saved-wrapper: ")


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
