"""Links from findings: to the project's pages as soon as its package names them, and to the handbook without any network."""

from __future__ import annotations

import importlib.metadata
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import escape
from sick import PLUGINS, diagnosis_of

from distdoctor.cli.colour import console
from distdoctor.report import html, links, markdown, sarif, text

METADATA = """Metadata-Version: 2.4
Name: distdoctor
Version: {version}
Project-URL: Home-Page, https://example.org/distdoctor
Project-URL: Documentation, https://docs.example.org/distdoctor/
"""
PAGE = "https://docs.example.org/distdoctor/reference/codes/DD301/"


@pytest.fixture
def with_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package as it will be installed once it has addresses."""
    version = importlib.metadata.version("distdoctor")
    about = tmp_path / f"distdoctor-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(METADATA.format(version=version))
    monkeypatch.syspath_prepend(tmp_path)
    links._addresses.cache_clear()
    yield
    links._addresses.cache_clear()


@pytest.mark.usefixtures("with_addresses")
def test_reports_lead_to_the_pages_that_the_package_names() -> None:
    diagnosis = diagnosis_of("DD301")

    driver = json.loads(sarif.render(diagnosis))["runs"][0]["tool"]["driver"]

    assert driver["informationUri"] == "https://example.org/distdoctor"
    assert [rule["helpUri"] for rule in driver["rules"]] == [PAGE]
    assert f"| [DD301 missing-set-epoch]({PAGE}) | warning |" in markdown.render(diagnosis)
    assert f'<a href="{PAGE}" rel="noreferrer">' in html.render(diagnosis)
    assert f";{PAGE}\x1b\\distdoctor explain DD301" in shown("  more  distdoctor explain DD301\n")


@pytest.mark.usefixtures("with_addresses")
def test_codes_of_other_packages_are_not_looked_for_on_our_pages() -> None:
    assert links.page_of("TOY001") == ""


def test_without_an_address_none_is_made_up() -> None:
    driver = json.loads(sarif.render(diagnosis_of("DD301")))["runs"][0]["tool"]["driver"]

    assert importlib.metadata.metadata("distdoctor").get_all("Project-URL") is None
    assert driver["informationUri"] == f"pkg:pypi/distdoctor@{driver['version']}"
    assert "helpUri" not in driver["rules"][0]


@pytest.mark.parametrize("code", [code for code in PLUGINS.checks if code.startswith("DD")])
def test_on_a_terminal_every_finding_is_linked_to_the_file_with_its_page(code: str) -> None:
    said = shown(text.render(diagnosis_of(code)))
    file = Path(PLUGINS.checks[code].examine.__code__.co_filename)

    assert f";{file.as_uri()}\x1b\\distdoctor explain {code}" in said


def test_the_page_of_the_handbook_is_in_the_html_once_for_each_code() -> None:
    diagnosis = diagnosis_of("DD301")
    twice = replace(diagnosis, findings=(*diagnosis.findings, *diagnosis.findings))

    page = html.render(twice)

    assert page.count("<summary>what DD301 means</summary>") == 1
    assert page.count(str(escape(PLUGINS.checks["DD301"].handbook))) == 1


def shown(report: str) -> str:
    stream = io.StringIO()
    console(stream).print(report, end="", soft_wrap=True, markup=False)
    return stream.getvalue()
