"""Our own plugins and strangers' come in by the same door."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from distdoctor import plugin_api, plugins
from distdoctor.errors import PluginTrouble

TOY = Path(__file__).parent / "toy"


def test_the_toy_plugin_imports_only_what_is_public() -> None:
    imported = {
        module
        for file in (TOY / "toylab").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        for module in _imported_by(node)
        if module.partition(".")[0].startswith("distdoctor")
    }

    public = {"distdoctor.plugin_api", "distdoctor.offers", "distdoctor.testing", "distdoctor.testing.gradients"}
    assert imported == public


def _imported_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_every_public_name_is_explained_in_the_guide_for_plugins() -> None:
    guide = (Path(__file__).parent.parent.parent / "docs" / "plugins.md").read_text("utf-8")

    assert [name for name in plugin_api.__all__ if f"`{name}`" not in guide] == []


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy plugin, built and installed as a stranger would, in a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(TOY)], check=True, timeout=120)
    return target


def doctor(*words: str, site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ["PYTHONPATH"]]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "distdoctor", *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.job  # runs pip
def test_a_strangers_plugin_is_listed_with_its_distribution(installed: Path, tmp_path: Path) -> None:
    done = doctor("plugins", site=installed, cwd=tmp_path)

    assert done.returncode == 0
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("toylab"))
    assert "toylab-distdoctor 1.2.3" in line


@pytest.mark.job
def test_a_strangers_strategy_is_run_by_its_check_and_cured_by_its_remedy(installed: Path, tmp_path: Path) -> None:
    words = ["run", "--strategy", "patient", "--politeness", "4", "--nproc", "2", "--output-format", "json"]

    done = doctor(*words, site=installed, cwd=tmp_path)

    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert [finding["code"] for finding in findings] == ["LAB001", "LAB001"]
    assert findings[0]["remedies"][0]["what"] == "Leave the barriers out."


@pytest.mark.job
def test_a_strangers_suite_runs_the_tests_that_ship(installed: Path, tmp_path: Path) -> None:
    shutil.copy(TOY / "test_toylab.py", tmp_path)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_toylab.py"]

    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout
    assert "32 passed" in done.stdout


STRANGERS_FINDINGS = """
from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.testing import recording
from distdoctor.testing.gradients import trained_job

loop = recording(3)
for step in range(4):
    loop.collective("all_reduce", [8], site="train.py:41 step").collective("broadcast", [1], site="train.py:42 step")
    if step == 2:
        loop.skipped_by(1)
    loop.step()
apart = trained_job(3).initial().step().step(grads={1: 1}, params={1: 1}, names=["head.weight"])
for blocked in ((), ("toylab",)):
    checks = plugins.load(blocked).checks.values()
    print(*(finding.code for seen in (loop.live(), apart.recording()) for finding in examine(seen, checks).findings))
"""


@pytest.mark.job
def test_a_strangers_checks_are_heard_where_they_are_more_specific_and_ours_where_they_are_not_there(installed) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(installed), os.environ["PYTHONPATH"]]),
        "OMP_NUM_THREADS": "1",
    }

    done = subprocess.run(
        [sys.executable, "-c", STRANGERS_FINDINGS], env=env, capture_output=True, text=True, timeout=120
    )

    assert done.stdout.splitlines() == ["LAB002 LAB003", "DD101 DD202"], done.stderr


@pytest.mark.job
def test_a_blocked_plugin_takes_no_part(installed: Path, tmp_path: Path) -> None:
    done = doctor("run", "--no-plugin", "toylab", "--strategy", "patient", site=installed, cwd=tmp_path)

    assert done.returncode == 2
    assert "patient" in done.stderr


def add_entry_point(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, source: str) -> None:
    """Let one more plugin be installed, whose only module holds `source`."""
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    usual = plugins.importlib.metadata.entry_points

    def entry_points(group: str) -> list[EntryPoint]:
        return [*usual(group=group), EntryPoint(name, name, group)]

    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", entry_points)


def test_a_plugin_that_cannot_be_imported_is_named_and_the_rest_go_on(monkeypatch, tmp_path: Path) -> None:
    add_entry_point(monkeypatch, tmp_path, "broken_plugin", "import a_module_that_is_not_there")

    found = plugins.load()

    assert "DD101" in found.checks
    (broken,) = (plugin for plugin in found.loaded if plugin.name == "broken_plugin")
    assert broken.trouble == "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"


def test_a_misspelt_hook_is_named(monkeypatch, tmp_path: Path) -> None:
    source = "def distdoctor_cheks():\n    return []\n"
    add_entry_point(monkeypatch, tmp_path, "misspelt_plugin", source)

    found = plugins.load()

    (misspelt,) = (plugin for plugin in found.loaded if plugin.name == "misspelt_plugin")
    assert "distdoctor_cheks" in misspelt.trouble
    assert found.checks


def test_two_owners_of_one_code_are_both_named(monkeypatch, tmp_path: Path) -> None:
    source = """
def distdoctor_checks():
    from distdoctor_checks.hang.rank_died import examine
    return [examine]
"""
    add_entry_point(monkeypatch, tmp_path, "second_plugin", source)

    with pytest.raises(PluginTrouble, match="DD110 is offered by both checks and second_plugin") as error:
        _ = plugins.load().checks

    assert error.value.way_out == "Leave one out: --no-plugin second_plugin."


def test_a_hook_that_raises_is_noted_and_the_others_are_heard(monkeypatch, tmp_path: Path) -> None:
    source = "def distdoctor_checks():\n    raise OSError('no')\n"
    add_entry_point(monkeypatch, tmp_path, "raising_plugin", source)

    found = plugins.load()

    assert "DD101" in found.checks
    (raising,) = (plugin for plugin in found.loaded if plugin.name == "raising_plugin")
    assert raising.trouble == "distdoctor_checks failed: OSError: no"


def test_a_broken_module_of_a_package_does_not_take_the_others_along(monkeypatch, tmp_path: Path) -> None:
    package = tmp_path / "half_plugin"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from distdoctor.hooks import found_in\nfrom distdoctor.offers import Drill\n"
        "def distdoctor_drills():\n    return found_in(__name__, Drill)\n"
    )
    (package / "good.py").write_text("from distdoctor.offers import Drill\nD = Drill('good', 'X', '', '', 'a:b')\n")
    (package / "bad.py").write_text("this is no python\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    usual = plugins.importlib.metadata.entry_points
    monkeypatch.setattr(
        plugins.importlib.metadata,
        "entry_points",
        lambda group: [*usual(group=group), EntryPoint("half", "half_plugin", group)],
    )

    found = plugins.load()

    assert "good" in found.drills
    (half,) = (plugin for plugin in found.loaded if plugin.name == "half")
    assert half.trouble.startswith("bad left out: SyntaxError")


def test_blocking_a_plugin_that_is_not_installed_is_an_error_with_the_names(monkeypatch) -> None:
    with pytest.raises(PluginTrouble, match="no plugin is called nobody") as error:
        plugins.load(["nobody"])

    assert "checks" in error.value.way_out
