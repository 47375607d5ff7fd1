"""What every installed check promises: its code on its smallest sick recording, silence on the nearest healthy one, a page."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from sick import PLUGINS, diagnosis_of, fresh_diagnosis_of, own

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.finding import CERTAIN, Finding
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.report.text import render

ROOT = Path(__file__).parent.parent
CHECKS: dict[str, Check] = PLUGINS.checks
REMEDIES: dict[str, Remedy] = PLUGINS.remedies
SECTIONS = ["What it means", "Why it hurts", "How we know", "What to do", "When it is fine", "Source"]
each_check = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())


def test_every_plugin_of_ours_is_whole() -> None:
    assert [f"{p.name}: {p.trouble}" for p in PLUGINS.loaded if p.trouble] == []
    assert len(CHECKS) >= 40


@each_check
def test_the_smallest_sick_recording_is_reported_first_under_its_own_code(check: Check) -> None:
    diagnosis = diagnosis_of(check.code)

    assert [(n.code, n.reason) for n in diagnosis.not_examined if "the check failed" in n.reason] == []
    assert diagnosis.findings, f"{check.code} found nothing"
    assert diagnosis.findings[0].code == check.code


@each_check
def test_one_event_has_one_code(check: Check) -> None:
    diagnosis = diagnosis_of(check.code)
    family = {code for code, other in CHECKS.items() if other.family and other.family == check.family}

    assert [f.code for f in diagnosis.findings if f.code in family and f.code != check.code] == []


@each_check
def test_the_nearest_healthy_recording_is_not_reported(check: Check) -> None:
    diagnosis = diagnosis_of(check.code, "healthy")

    assert [(n.code, n.reason) for n in diagnosis.not_examined if "the check failed" in n.reason] == []
    assert [f.title for f in diagnosis.findings if f.code == check.code] == []


@each_check
def test_the_page_of_the_handbook_has_its_sections(check: Check) -> None:
    page = check.handbook

    assert re.match(rf"{check.code} {re.escape(check.slug)}: \S", page)
    assert re.findall(rf"^({'|'.join(SECTIONS)})\s+\S", page, re.MULTILINE) == SECTIONS
    assert max(map(len, page.splitlines())) <= 130


@each_check
def test_a_finding_says_who_where_why_and_what_to_do(check: Check) -> None:
    for finding in own_findings(check):
        assert finding.severity is not None
        assert finding.title
        assert finding.why or finding.evidence
        assert finding.prescriptions, "a finding without a cure"
        assert all(cure.slug in REMEDIES for cure in finding.prescriptions), [c.slug for c in finding.prescriptions]
        assert finding.place or finding.ranks or finding.confidence != CERTAIN


@each_check
def test_the_report_of_the_sick_recording_fits_on_a_page(check: Check) -> None:
    text = render(diagnosis_of(check.code), base="/job")

    assert len(text.splitlines()) <= 40
    assert f"distdoctor explain {check.code}" in text


@each_check
def test_findings_can_be_compared_and_are_the_same_twice(check: Check) -> None:
    assert diagnosis_of(check.code).findings == fresh_diagnosis_of(own(check.code)).findings


def own_findings(check: Check) -> list[Finding]:
    return [f for f in diagnosis_of(check.code).findings if f.code == check.code]


def test_codes_and_slugs_are_unique_and_files_are_named_after_the_illness() -> None:
    slugs = [check.slug for check in CHECKS.values()]
    modules = {check.module.rpartition(".")[2].replace("_", "-"): check.slug for check in CHECKS.values()}

    assert len(slugs) == len(set(slugs))
    assert all(re.fullmatch(r"DD\d{3}", code) for code in CHECKS)
    assert {name: slug for name, slug in modules.items() if name != slug} == {}


@pytest.mark.parametrize("remedy", REMEDIES.values(), ids=REMEDIES.keys())
def test_a_remedy_says_what_to_do_in_one_sentence(remedy: Remedy) -> None:
    assert remedy.what.endswith(".")
    assert remedy.what[0].isupper()
    assert remedy.safety


def test_every_remedy_is_prescribed_by_some_check() -> None:
    homes = {check.module for check in CHECKS.values()} | {
        n for n in sys.modules if n.startswith("distdoctor.diagnosis.hang.")
    }
    sources = "\n".join(inspect.getsource(sys.modules[name]) for name in sorted(homes))

    assert [slug for slug in REMEDIES if f'"{slug}"' not in sources] == []


def test_a_finding_is_a_value() -> None:
    assert {f.name for f in fields(Finding)} >= {"code", "ranks", "place", "places", "evidence", "prescriptions"}


# Packages in which every file can be built and tested without the files that use it.


def test_no_package_has_a_cycle_of_imports() -> None:
    """Counted with grimp, imports for types alone included."""
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "benchmarks" / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    architecture = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = architecture
    spec.loader.exec_module(architecture)
    packages = architecture.packages(architecture.imports())

    assert len(packages) > 10
    assert [package.cycles for package in packages if package.cycles] == []
