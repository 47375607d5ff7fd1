"""Whether ranks wait for ever because of an incident: proven by what they have entered and not left, or only by long silence.

Nothing else may end a job. A rank that is merely late (a checkpoint, a download, a slow loader, a stopped process) always may
come, so what is told about it never counts as proof; nor does a disagreement that the transport let through, after which every
member went on.
"""

from __future__ import annotations

from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.finding import CERTAIN, Stalls
from distdoctor.diagnosis.hang.alignment import REDUCTION, went_past
from distdoctor.diagnosis.hang.ending import Ending
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.silence import silence
from distdoctor.diagnosis.hang.wait_for import Deadlock


def stalls(incident: Incident, facts: Collectives, endings: dict[int, Ending], deadlock: Deadlock) -> Stalls:
    """What the incident means for the ranks that live: they go on, they may go on, or they cannot."""
    if _is_silent(incident):
        return Stalls.NO
    if incident.confidence is not CERTAIN or incident.silence is not None:
        return Stalls.MAYBE
    if incident.is_closed or any(wait.is_certain for wait in deadlock.dead):
        return Stalls.FOREVER
    if incident.divergence is not None and went_past(incident.divergence):
        return Stalls.NO
    # Who waits for a handle, or inside backward, leaves no open call: there the job's own rhythm has to agree.
    return Stalls.FOREVER if silence(facts, endings) is not None else Stalls.MAYBE


def _is_silent(incident: Incident) -> bool:
    """Whether nobody waits because of it: other numbers come out, and that is all."""
    if incident.divergence is not None:
        return incident.divergence.differs == REDUCTION
    return incident.kind in (IncidentKind.SWAPPED, IncidentKind.UNRECEIVED)
