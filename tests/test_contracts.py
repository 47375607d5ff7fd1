"""What every installed check promises: its code on its smallest sick recording, silence on the nearest healthy one, a page."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.finding import Finding
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.pytest_plugin.contracts import PluginContracts

ROOT = Path(__file__).parent.parent
CHECKS: dict[str, Check] = PLUGINS.checks
REMEDIES: dict[str, Remedy] = PLUGINS.remedies


def test_every_plugin_of_ours_is_whole() -> None:
    assert [f"{p.name}: {p.trouble}" for p in PLUGINS.loaded if p.trouble] == []
    assert len(CHECKS) >= 40


class TestOurs(PluginContracts):
    """The tests that ship for plugins of others hold for ours."""

    distribution = "distdoctor"
    test_every_format_can_show_it = None  # tests/report has all of them

    @pytest.mark.job
    def test_ranks_import_the_standard_library_and_torch_only(self) -> None:
        super().test_ranks_import_the_standard_library_and_torch_only()

    @pytest.mark.job
    def test_checks_and_remedies_load_without_torch(self) -> None:
        super().test_checks_and_remedies_load_without_torch()


def test_codes_and_slugs_are_unique() -> None:
    slugs = [check.slug for check in CHECKS.values()]

    assert len(slugs) == len(set(slugs))
    assert all(re.fullmatch(r"DD\d{3}", code) for code in CHECKS)


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
