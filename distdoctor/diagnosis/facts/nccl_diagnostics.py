"""What NCCL's own diagnostics said, as a fact that checks ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.recording.clue import ClueKind
from distdoctor.recording.nccl_remark import NcclRemark, remark_in
from distdoctor.recording.recording import Recording


@dataclass(frozen=True)
class NcclDiagnostics:
    """The remarks of all communicators, each once, in the order in which they were printed."""

    streams: ClassVar[frozenset[str]] = frozenset()
    remarks: tuple[NcclRemark, ...]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        printed = [remark_in(clue.words) for clue in recording.clues if clue.kind is ClueKind.DIAGNOSTIC]
        found = [one for one in printed if one is not None]
        found += recording.preflight.remarks if recording.preflight is not None else ()
        if not found:
            raise NotApplicable("NCCL's own diagnostics (2.31 and newer) were off, or their lines are not here")
        return cls(tuple(dict.fromkeys(found)))
