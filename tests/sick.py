"""Each check's own recordings and what all checks say of them, made once in a process for all tests that look at them."""

from __future__ import annotations

from distdoctor.pytest_plugin.contracts import diagnosis_of, fresh_diagnosis_of, installed
from distdoctor.pytest_plugin.contracts import recording_of as own

__all__ = ["PLUGINS", "diagnosis_of", "fresh_diagnosis_of", "own"]

PLUGINS = installed()
