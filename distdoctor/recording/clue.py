"""A line of a job's output that tells something."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from distdoctor.recording.source_line import SourceLine


class ClueKind(StrEnum):
    """What a line of a log tells."""

    SIZES = "sizes"  # numbers: bytes that came, bytes that were expected
    NOT_ARRIVED = "not arrived"  # numbers: the group ranks that others wait for in the store
    JOINED = "joined"  # numbers: clients that came, clients that were expected
    PEER_GONE = "peer gone"
    AGENTS = "agents"  # numbers: the agents of torchrun, one per host, that others wait for in the store
    EXIT_BARRIER = "exit barrier"  # torchrun's agent waited for others at its end; numbers: seconds
    LOOPBACK = "loopback"  # gloo took an address that no other host can reach; numbers: 1 where it failed
    UNREACHABLE = "unreachable"  # nobody answered where the ranks or their launchers are to meet
    ENDED = (
        "ended"  # operation: which process, in its launcher's words, and how; how alone where it printed that itself;
        # numbers: the ranks that its launcher means, where that is known
    )
    TIMED_OUT = "timed out"  # numbers: sequence number, milliseconds, elements in, elements out (-1: not printed)
    WORK = "work"  # numbers: the number the watchdog was at (-1: none), the last one enqueued, the last one completed
    LAGGING = (
        "lagging"  # numbers: a rank that torch's desync report blames, the number it has not completed; words say how
    )
    MISSED_BARRIER = "missed barrier"  # numbers: the ranks that did not come to a monitored_barrier
    WAITED = "waited"  # gloo gave up; numbers: milliseconds
    KILLED_FOR_MEMORY = "killed for memory"  # numbers: the process id; none where the scheduler says it
    STANDS = "stands"  # a watchdog of NCCL that has looked at nothing for a while; numbers: seconds
    GIL_HELD = "GIL held"  # torch could not get the rank's interpreter lock when its watchdog had hung
    WARNING = "warning"  # of NCCL
    GPU_FAULT = "gpu fault"  # of ROCm's runtime about a GPU; operation: which device, and why
    PRINTED = "printed"  # what a device says of a kernel that failed, without an exception around it
    NETWORK = "network"  # what NCCL's own network met; operation: that
    XID = "xid"  # of NVIDIA's driver about a GPU; numbers: its code, the process id (0: not told); operation: which device
    DIAGNOSTIC = (
        "diagnostic"  # of NCCL's own diagnostics, 2.31 and newer: what they found, and what they found in order
    )
    PORT_TAKEN = "port taken"  # torch's store could not listen; numbers: the port, where it is told
    BUSY = "busy"  # the progress bar that was last drawn before the first timeout: beside other clues only; operation: of what
    EXCEPTION = "exception"
    # The first line that speaks of a loss or an epoch, and the last one; numbers: of the last, how many such lines came behind
    # everything that tells of something wrong. Beside other clues only.
    TRAINING = "training"
    LAST_WORDS = "last words"  # the last line that a rank has printed: beside other clues only
    CONTAINER_RANK = "container rank"  # rank: that of the container whose end was told above; a reader's own
    DETAIL = "detail"  # of the exception above it; a reader's own


@dataclass(frozen=True)
class Clue:
    """One telling line. `rank` is who printed it, -1 where the log does not say; `line_number` counts from 1."""

    kind: ClueKind
    words: str
    rank: int = -1
    numbers: tuple[int, ...] = ()
    site: SourceLine = SourceLine()  # noqa: RUF009  (frozen)
    line_number: int = 0
    lines_after: int = 0  # how many lines the log has behind it
    operation: str = ""  # "" where the line is cut before it ends
    group: str = ""  # `PG ID 0 PG GUID 0(default_pg)`, as printed
    raised_in: str = ""  # the file of the innermost frame, of an exception
    file: str = ""  # the name of the log, where there are several
    inside: str = ""  # of a crash: the function that the line at `site` had called
