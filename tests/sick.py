"""Each check's own recordings and what all checks say of them, made once in a process for all tests that look at them."""

from __future__ import annotations

import sys
from functools import cache

from distdoctor import plugins
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.recording.recording import Recording

PLUGINS = plugins.load()


@cache
def own(code: str, name: str = "sick") -> Recording:
    """The check's `sick()` or `healthy()`."""
    found = getattr(sys.modules[PLUGINS.checks[code].module], name)()
    assert isinstance(found, Recording)
    return found


@cache
def diagnosis_of(code: str, name: str = "sick") -> Diagnosis:
    """What all checks together say of it."""
    return fresh_diagnosis_of(own(code, name))


def fresh_diagnosis_of(recording: Recording) -> Diagnosis:
    return examine(recording, PLUGINS.checks.values(), PLUGINS.remedies)
