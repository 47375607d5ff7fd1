"""What a plugin may rely on. Every name of `__all__` keeps its meaning until a major version says otherwise; nothing else does.

Checks, remedies and report formats import from here. What runs inside a rank (the module that a `Strategy`, `Model`, `DataSource`
or `Drill` names) is described in `distdoctor.offers`, which a package's `__init__` imports instead: a rank gets the standard
library and torch, and this module brings what reads recordings.
"""

from __future__ import annotations

from distdoctor.diagnosis.check import Check, NotApplicable, NotSeen, check
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import (
    CERTAIN,
    ERROR,
    LIKELY,
    NOTE,
    POSSIBLE,
    WARNING,
    Confidence,
    Finding,
    Place,
    Prescription,
    Severity,
    Stalls,
)
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences
from distdoctor.hooks import Found, found_in
from distdoctor.offers import DataSource, Drill, Model, Option, Strategy
from distdoctor.recording.recording import Job, RankTrace, Recording, SourceLine
from distdoctor.recording.trace.layout import Op

__all__ = [
    "CERTAIN",
    "ERROR",
    "LIKELY",
    "NOTE",
    "POSSIBLE",
    "WARNING",
    "Check",
    "Confidence",
    "DataSource",
    "Diagnosis",
    "Drill",
    "Finding",
    "Found",
    "Incident",
    "IncidentKind",
    "Job",
    "Model",
    "NotApplicable",
    "NotSeen",
    "Op",
    "Option",
    "Place",
    "Prescription",
    "RankTrace",
    "Recording",
    "Remedy",
    "ReplicaDivergence",
    "ReplicaDivergences",
    "Severity",
    "SourceLine",
    "Stalls",
    "Strategy",
    "Verdict",
    "check",
    "found_in",
]
