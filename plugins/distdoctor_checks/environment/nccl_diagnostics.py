"""
DD610 nccl-diagnostics: NCCL's own diagnostics found something that a job should not start with.

What it means    NCCL 2.31 and newer compares GPUs, drivers, ECC counters, NVLinks and its variables over all ranks, and copies
                 data between every pair of GPUs, where NCCL_RUN_RAS_DIAGNOSTICS=1 or NCCL_RUN_DIAGNOSTICS=1 asks for it.
Why it hurts     A link that is down or drops bits, a card with memory errors or another driver on one host shows later as a
                 hang, as a NaN or as a job that is slow for no reason.
How we know      NCCL printed it: into the job's log, to the ranks of a preflight, or in its answer to `ncclras -D`. Ranks are
                 those of its communicator. What NCCL could not find out, and how loud ranks log, is not told.
What to do       Take the host or the card out of the job and let its diagnostics run; give all hosts one driver and one set of
                 NCCL_* variables.
When it is fine  Variables that are meant to differ from host to host, such as the interface's name.
Source           https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/diagnostics.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.nccl_diagnostics import NcclDiagnostics
from distdoctor.diagnosis.finding import ERROR, LIKELY, WARNING, Finding, Prescription, Severity
from distdoctor.recording.nccl_remark import NcclRemark
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing.preflight import checked_machine

HOST, SAME = "without-this-host", "same-environment"


class Trouble(NamedTuple):
    """A remark that a job should not start with, and how it is told."""

    subject: str
    words: re.Pattern[str]  # its groups fill the title, after the ranks
    severity: Severity
    title: str
    remedy: str


TROUBLES = tuple(
    Trouble(subject, re.compile(words), severity, title, remedy)
    for subject, severity, words, title, remedy in (
        ("p2p", ERROR, r"^(?:write|read) mismatch", "{0} exchanged data and got other data", HOST),
        ("p2p", WARNING, r"^[\w/ -]{1,40} failed|^destination buffer un", "{0} cannot reach each other's memory", HOST),
        ("ECC", ERROR, r"^uncorrected volatile errors on", "{0}: uncorrected errors of the GPU's memory", HOST),
        ("ECC", WARNING, r"^corrected volatile errors at or", "{0}: many corrected errors of the GPU's memory", HOST),
        ("NVLink", WARNING, r"^inactive link", "{0}: an NVLink is down", HOST),
        ("NVLink", WARNING, r"^link-count mismatch.* (\(\d+\))", "{0}: not as many NVLinks as the others {1}", HOST),
        ("GPU inventory", WARNING, r"^count mismatch.* (\(\d+\))", "{0}: not as many GPUs as the others {1}", SAME),
        ("GPU inventory", WARNING, r"^model mismatch.*? (\(.*\))", "{0}: another GPU than the others {1}", SAME),
        (
            "CUDA driver version",
            WARNING,
            r"^mismatch.*? (\(.*\))",
            "{0}: another CUDA driver than the others {1}",
            SAME,
        ),
        ("NCCL environment", WARNING, r"^mismatch .* for (?!NCCL_DEBUG)(NCCL_\w+)", "{1} differs between ranks", SAME),
        ("net bw", WARNING, r"\brank \d+ .*>30% off median", "{0}: another network bandwidth than the others", HOST),
    )
)


@check("DD610", "nccl-diagnostics", severity=ERROR, stands_alone=True)
def examine(nccl: NcclDiagnostics) -> Iterator[Finding]:
    told: dict[tuple[Trouble, str], list[NcclRemark]] = {}
    for remark in nccl.remarks:
        for trouble in TROUBLES if not remark.is_fine else ():
            found = trouble.words.search(remark.words)
            if found and trouble.subject == remark.subject:
                told.setdefault((trouble, found[1] if found.groups() else ""), []).append(remark)
    for (trouble, detail), remarks in told.items():
        ranks = tuple(dict.fromkeys(rank for one in remarks for rank in one.ranks))
        yield Finding(
            title=trouble.title.format(named(ranks) or "NCCL", detail),
            ranks=ranks,
            confidence=LIKELY,
            severity=trouble.severity,
            evidence=_quoted(nccl, trouble.subject, detail or remarks[0].words),
            why="NCCL's own diagnostics say so; its ranks are those of the communicator that it was making.",
            prescriptions=(Prescription(trouble.remedy),),
        )


def _quoted(nccl: NcclDiagnostics, subject: str, about: str) -> dict[str, object]:
    """The lines that NCCL printed of it."""
    lines = [one.words for one in nccl.remarks if one.subject == subject and about in one.words and not one.is_fine]
    return {f"NCCL {number}": words[:300] for number, words in enumerate(lines[:4], start=1)}


def _printed(*remarks: tuple[str, str, bool]) -> Recording:
    return checked_machine(remarks=tuple(NcclRemark(subject, words, fine, "node0") for subject, words, fine in remarks))


def sick() -> Recording:
    """Rank 3 is on a card with memory errors."""
    return _printed(
        ("GPU inventory", "4x NVIDIA H100 per node consistent across 4 ranks in comm 0x1234", True),
        ("ECC", "uncorrected volatile errors on rank(s) {3} (worst=2) across 4 ranks in comm 0x1234", False),
    )


def healthy() -> Recording:
    """All in order; what NCCL cannot find out, and how loud it logs, is no trouble."""
    return _printed(
        ("GPU inventory", "4x NVIDIA H100 per node consistent across 4 ranks in comm 0x1234", True),
        ("ECC", "unavailable via NVML across 4 ranks in comm 0x1234", False),
        ("NCCL environment", "mismatch across 4 ranks in comm 0x1234 for NCCL_DEBUG", False),
        ("p2p", "all 12 directed GPU P2P edges verified", True),
    )
