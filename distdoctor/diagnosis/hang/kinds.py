"""What kinds of incidents there are: what happened, before anybody says why."""

from __future__ import annotations

from enum import StrEnum


class IncidentKind(StrEnum):
    """What happened. Of two that happened at the same moment the one named first here is the cause."""

    DIVERGED = "diverged"  # the members of a group issued different calls
    STRAYED = (
        "strayed"  # ranks left their own routine: others wait for a call that these skipped, or in one that these added
    )
    UNSENT = "unsent"  # a rank left out a message that it used to send (or receive) there, and whoever has its other end waits
    RING = "ring"  # ranks wait for each other
    LEFT = "left"  # a rank ended in order, and others need it
    FAILED = "failed"  # a rank failed by itself
    PASSED_BY = "passed by"  # ranks are in new_group, and others are not
    ECHOED = "echoed"  # ranks failed because a peer was gone, and how that one ended is not on record
    UNFIT = "unfit"  # every member failed inside one call, in which each brings sizes of its own, some by an abort
    GAVE_UP = (
        "gave up"  # ranks raised a timeout in what is on no record, and the others were there until they were ended
    )
    MISFITTED = "misfitted"  # a receive of another size than its send
    UNRECEIVED = "unreceived"  # sends that nobody had received when every rank had ended in order
    DIED_LATE = "died late"  # a process died after its script had ended
    SWAPPED = "swapped"  # two calls of equal size in the other order, which nobody noticed
    NEVER_CAME = "never came"  # ranks wait in init_process_group for others
    TOGETHER = "together"  # every rank is in one call, and it does not complete
    ALL_SENT = "all sent"  # every rank is in a send
    ABSENT = "absent"  # ranks wait for others that are in no call


KINDS = list(IncidentKind)
