"""Remedies for launch and environment."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="allow-ptrace",
        what="Allow distdoctor to read the process.",
        how="sudo sysctl kernel.yama.ptrace_scope=0",
        effect="the stacks of running jobs can be read",
        safety="changes no result",
        source="https://docs.kernel.org/admin-guide/LSM/Yama.html",
    ),
)
