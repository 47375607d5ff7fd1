"""Settings: pyproject.toml, then variables, then the command line; what nobody knows is an error with its path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from distdoctor.cli.settings import Settings, load
from distdoctor.errors import WrongUse


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Path]:
    def write(table: str) -> Path:
        (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'x'\n{table}")
        (tmp_path / "deep" / "deeper").mkdir(parents=True)
        return tmp_path / "deep" / "deeper"

    return write


def test_without_any_the_defaults_hold(tmp_path: Path) -> None:
    assert load({}, tmp_path, {}) == Settings()


def test_the_command_line_wins_over_variables_and_those_over_the_file(project: Callable[[str], Path]) -> None:
    folder = project("[tool.distdoctor]\nfail-on = 'note'\non-hang = 'wait'\nignore = ['DD301']\n")
    variables = {"DISTDOCTOR_FAIL_ON": "warning", "DISTDOCTOR_ON_HANG": "report"}

    settings = load({"fail_on": "never", "on_hang": None, "ignore": ()}, folder, variables)

    assert (settings.fail_on, settings.on_hang, settings.ignore) == ("never", "report", ["DD301"])


def test_a_list_in_a_variable_is_separated_by_commas(tmp_path: Path) -> None:
    assert load({}, tmp_path, {"DISTDOCTOR_IGNORE": "DD301, DD302"}).ignore == ["DD301", "DD302"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[tool.distdoctor]\nfailon = 'note'\n", "unknown field `failon`"),
        ("[tool.distdoctor]\nfail-on = 'bad'\n", "Invalid enum value 'bad' - at `$.fail-on`"),
        ("[tool.distdoctor]\nignore = [1]\n", "Expected `str`, got `int` - at `$.ignore[0]`"),
    ],
)
def test_what_does_not_fit_is_named_with_its_file_and_path(
    project: Callable[[str], Path], table: str, words: str
) -> None:
    folder = project(table)

    with pytest.raises(WrongUse) as error:
        load({}, folder, {})

    assert words in str(error.value)
    assert str(error.value).startswith(f"{folder.parent.parent / 'pyproject.toml'} [tool.distdoctor]: ")
    assert "fail-on" in error.value.way_out


@pytest.mark.parametrize("target", ["otel:http://elsewhere.example", "tensorboard:/home/me"])
def test_a_file_may_name_a_way_to_notify_but_not_the_address(project: Callable[[str], Path], target: str) -> None:
    folder = project(f"[tool.distdoctor]\nnotify = ['wandb:nightly', '{target}']\n")

    with pytest.raises(WrongUse, match="says where a report is sent, which no file may choose") as error:
        load({}, folder, {})

    assert f"--notify {target}" in error.value.way_out
    assert load({}, folder.parents[2], {"DISTDOCTOR_NOTIFY": target}).notify == [target]
    assert load({"notify": (target,)}, folder.parents[2], {}).notify == [target]


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="DISTDOCTOR_FAIL_ON: Invalid enum value 'bad'"):
        load({}, tmp_path, {"DISTDOCTOR_FAIL_ON": "bad"})


def test_a_misspelt_variable_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load({}, tmp_path, {"DISTDOCTOR_FAILON": "never", "DISTDOCTOR_PROBE": "/x", "DISTDOCTOR_SECRET_LAB": "1"})

    assert capsys.readouterr().err == (
        "distdoctor: the variable DISTDOCTOR_FAILON means nothing; did you mean DISTDOCTOR_FAIL_ON?\n"
    )
