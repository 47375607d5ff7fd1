"""What a plugin promises, as tests for its own suite: every check finds its illness and nothing else, and says what to do.

    from distdoctor.pytest_plugin.contracts import PluginContracts

    class TestPlugin(PluginContracts):
        distribution = "mylab-distdoctor"

`distribution` is the project's name in pyproject.toml; the plugin has to be installed. Beside each check its module has two
functions, made with `distdoctor.testing`: `sick()` returns the smallest recording that must be reported, `healthy()` the nearest
one that must not be.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import ClassVar

import pytest

from distdoctor import plugins
from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, Finding
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.plugins import Plugins
from distdoctor.recording.recording import Recording
from distdoctor.report import html, json_report, text

SECTIONS = ["What it means", "Why it hurts", "How we know", "What to do", "When it is fine", "Source"]
OURS = "distdoctor"
_OF_RANKS = ("strategies", "models", "data", "drills")
_NOT_IN_RANKS = (
    "click",
    "rich_click",
    "pluggy",
    "rich",
    "psutil",
    "msgspec",
    "networkx",
    "jinja2",
    "distdoctor.plugin_api",
)


class PluginContracts:
    """Derive a class whose name begins with `Test`, and name the distribution."""

    distribution: ClassVar[str] = ""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test for each check, remedy, report and function of ranks."""
        if "check" in metafunc.fixturenames:
            _each(metafunc, "check", offered_by(self.distribution).checks)
        if "remedy" in metafunc.fixturenames:
            _each(metafunc, "remedy", offered_by(self.distribution).remedies)

    def test_the_plugin_is_installed_and_whole(self) -> None:
        offered = offered_by(self.distribution)

        assert [f"{one.name}: {one.trouble}" for one in offered.loaded if one.trouble] == []
        assert any(not one.blocked for one in offered.loaded), (
            f"{self.distribution} has no entry point of {plugins.GROUP}"
        )

    def test_checks_and_remedies_load_without_torch(self) -> None:
        blocked = [one.name for one in offered_by(self.distribution).loaded if one.blocked]
        words = f"from distdoctor import plugins; mine = plugins.load({blocked!r}); mine.checks, mine.remedies"

        assert _loaded_by(words, ("torch",)) == []

    def test_ranks_import_the_standard_library_and_torch_only(self) -> None:
        homes = {place.rpartition(":")[0] for place in _places(offered_by(self.distribution))}

        assert (
            _loaded_by(f"import importlib; [importlib.import_module(name) for name in {homes!r}]", _NOT_IN_RANKS) == []
        )

    def test_functions_of_ranks_are_there(self) -> None:
        assert [place for place in _places(offered_by(self.distribution)) if not _is_there(place)] == []

    def test_codes_and_slugs_are_its_own_and_a_file_is_named_after_its_illness(self) -> None:
        checks = offered_by(self.distribution).checks
        others = [check.slug for code, check in installed().checks.items() if code not in checks]
        wrong = [code for code in checks if not re.fullmatch(r"[A-Z]{2,}\d{3,}", code)]
        wrong += [code for code in checks if code.startswith("DD") and self.distribution != OURS]

        assert wrong == []
        assert [check.slug for check in checks.values() if check.slug in others] == []
        assert {
            c.slug: c.module for c in checks.values() if c.module.rpartition(".")[2].replace("_", "-") != c.slug
        } == {}

    def test_the_smallest_sick_recording_is_reported_first_under_its_own_code(self, check: Check) -> None:
        diagnosis = diagnosis_of(check.code)

        assert _crashed(diagnosis) == []
        assert diagnosis.findings, f"{check.code} found nothing"
        assert diagnosis.findings[0].code == check.code

    def test_one_event_has_one_code(self, check: Check) -> None:
        family = {code for code, other in installed().checks.items() if other.family and other.family == check.family}

        assert [f.code for f in diagnosis_of(check.code).findings if f.code in family and f.code != check.code] == []

    def test_the_nearest_healthy_recording_is_not_reported(self, check: Check) -> None:
        diagnosis = diagnosis_of(check.code, "healthy")

        assert _crashed(diagnosis) == []
        assert [f.title for f in diagnosis.findings if f.code == check.code] == []

    def test_the_page_of_the_handbook_has_its_sections(self, check: Check) -> None:
        page = check.handbook

        assert re.match(rf"{check.code} {re.escape(check.slug)}: \S", page)
        assert re.findall(rf"^({'|'.join(SECTIONS)})\s+\S", page, re.MULTILINE) == SECTIONS
        assert max(map(len, page.splitlines())) <= 130

    def test_a_finding_says_who_where_why_and_what_to_do(self, check: Check) -> None:
        for finding in _own_findings(check):
            assert finding.severity is not None
            assert finding.title
            assert finding.why or finding.evidence
            assert finding.prescriptions, "a finding without a remedy"
            assert [cure.slug for cure in finding.prescriptions if cure.slug not in installed().remedies] == []
            assert finding.place or finding.ranks or finding.confidence != CERTAIN

    def test_the_report_of_the_sick_recording_fits_on_a_page(self, check: Check) -> None:
        shown = text.render(diagnosis_of(check.code), base="/job")

        assert len(shown.splitlines()) <= text.LINES
        assert f"distdoctor explain {check.code}" in shown

    def test_every_format_can_show_it(self, check: Check) -> None:
        diagnosis = diagnosis_of(check.code)

        for render in (html.render, json_report.render, *installed().reports.values()):
            assert render(diagnosis).strip()

    def test_findings_are_the_same_twice(self, check: Check) -> None:
        assert diagnosis_of(check.code).findings == fresh_diagnosis_of(recording_of(check.code)).findings

    def test_a_remedy_says_what_to_do_in_one_sentence(self, remedy: Remedy) -> None:
        assert remedy.what.endswith(".")
        assert remedy.what[0].isupper()
        assert remedy.safety, "what may go wrong with it"


@cache
def installed() -> Plugins:
    """All plugins, ours too."""
    return plugins.load()


@cache
def offered_by(distribution: str) -> Plugins:
    """What the entry points of one distribution offer; those of all others are blocked."""
    wanted = _normal(distribution)
    mine = plugins.load(one.name for one in installed().loaded if _normal(one.distribution) != wanted)
    for offered in ("checks", "remedies", "reports", *_OF_RANKS):
        getattr(mine, offered)  # what cannot be imported is noted now
    return mine


@cache
def recording_of(code: str, name: str = "sick") -> Recording:
    """A check's `sick()` or `healthy()`."""
    module = installed().checks[code].module
    make: Callable[[], object] | None = getattr(importlib.import_module(module), name, None)
    assert make is not None, f"{module} has no function {name}() that returns a recording"
    found = make()
    assert isinstance(found, Recording)
    return found


@cache
def diagnosis_of(code: str, name: str = "sick") -> Diagnosis:
    """What all installed checks together say of it."""
    return fresh_diagnosis_of(recording_of(code, name))


def fresh_diagnosis_of(recording: Recording) -> Diagnosis:
    return examine(recording, installed().checks.values(), installed().remedies)


def _each(metafunc: pytest.Metafunc, name: str, offered: Mapping[str, object]) -> None:
    metafunc.parametrize(name, list(offered.values()), ids=list(offered))


def _own_findings(check: Check) -> list[Finding]:
    return [finding for finding in diagnosis_of(check.code).findings if finding.code == check.code]


def _crashed(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(one.code, one.reason) for one in diagnosis.not_examined if one.failed]


def _places(offered: Plugins) -> list[str]:
    """`module:function` of everything that runs in ranks."""
    found = [strategy.train for strategy in offered.strategies.values()]
    found += [model.make for model in offered.models.values()]
    found += [source.make for source in offered.data.values()]
    return found + [drill.plant for drill in offered.drills.values()]


def _is_there(place: str) -> bool:
    module, _, name = place.partition(":")
    return callable(getattr(importlib.import_module(module), name, None))


def _loaded_by(words: str, unwanted: tuple[str, ...]) -> list[str]:
    """Which of these modules a new interpreter has after these words."""
    script = f"import sys; {words}; print(*(name for name in {unwanted!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def _normal(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
