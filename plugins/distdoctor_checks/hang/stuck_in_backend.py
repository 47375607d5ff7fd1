"""
DD122 stuck-in-backend: every rank of the group has entered the collective, but it does not complete.

What it means    All ranks of the group are inside the same call with equal arguments. The cause is below the program: the
                 network, the transport, a kernel or a device.
Why it hurts     The program is innocent, and rereading it wastes the night.
How we know      The counts and signatures of all members agree, all are inside the call, and none has moved for five times the
                 job's 99th percentile step, at least ten seconds. If the ranks talk over TCP (gloo, NCCL's sockets), the
                 kernel's connection table shows the dead link: bytes retransmitted three or more times in a row and never
                 acknowledged. In NCCL dumps, a call that one member has completed and another has not points to that other
                 member's device.
What to do       Check the links and devices of the named ranks; NCCL_DEBUG and the flight recorder tell which one does not
                 answer.
When it is fine  A first collective that sets up connections; a very large collective on a slow link.
Source           design of torch's flight recorder: a collective that all ranks have started and none has completed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.lost_hosts import LostHosts
from distdoctor.diagnosis.finding import ERROR, LIKELY, NOTE, POSSIBLE, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.device_progress import DeviceProgress
from distdoctor.diagnosis.hang.in_dumps import devices_that_stopped
from distdoctor.diagnosis.hang.in_logs import (
    LOOK,
    LogFacts,
    call_in,
    claimed,
    counted,
    from_line,
    of_one_group,
    who,
)
from distdoctor.diagnosis.hang.in_ras import failed_ranks, nothing_moves
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.host_or_device import told_by_backend
from distdoctor.diagnosis.hang.live.in_backend import seen_in_backend
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import by_site, full, seconds, short
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.job_log import NCCL_SAYS
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording


@check(
    "DD122",
    "stuck-in-backend",
    severity=ERROR,
    family="hang",
    formerly=("DD127 told-by-the-log",),
    stalls=Stalls.MAYBE,
    outside=True,
)
def examine(
    verdict: Verdict | None,
    standstill: Stall | None,
    progress: DeviceProgress | None,
    log: LogFacts | None,
    hosts: LostHosts | None,
) -> Iterator[Finding]:
    if log is not None:
        yield from _by_log(log)
        if standstill is None:
            return
    incidents = verdict.incidents if verdict is not None else ()
    crossed = any(one.crossed is not None for one in incidents)  # then the program may well be the cause
    if standstill is not None and hosts is not None and hosts.explain(standstill.stacks.elsewhere):
        standstill = None
    if standstill is not None and (standstill.cut or not incidents) and all(one.kind in _WAITS for one in incidents):
        yield from seen_in_backend(standstill, verdict) if not crossed else ()
    elif verdict is not None and not crossed:
        yield from (_finding(verdict, incident) for incident in verdict.of_kind(IncidentKind.TOGETHER))
    if progress is not None:
        yield from devices_that_stopped(progress, verdict)


_WAITS = (IncidentKind.TOGETHER, IncidentKind.ABSENT)  # what a recording says of ranks that wait, and not of the reason


def _by_log(log: LogFacts) -> Iterator[Finding]:
    yield from claimed(failed_ranks(log.ras), 92)
    yield from claimed(nothing_moves(log.ras), 60)
    if log.stopped_devices:
        ranks = sorted(one.call.rank for one in log.stopped_devices)
        yield _device(ranks, log.timeout(log.stopped_devices[0].call), log.stopped_devices[0].ahead)
    elif log.together:
        yield _together(log)
    elif log.of_several_groups:
        yield _of_several_groups(log.of_several_groups)
    elif log.unnumbered:
        yield _unnumbered(log.unnumbered)
    elif standing := log.lines(ClueKind.STANDS):
        yield _watchdogs_stand(standing)
    yield from (_lost_connection(clue) for clue in log.lines(ClueKind.NETWORK)[:1])
    yield from (_fault_of_gpu(clue) for clue in log.lines(ClueKind.GPU_FAULT)[:1])
    yield from (_fault_of_device(clue) for clue in log.lines(ClueKind.XID) if clue.numbers[0] in _XIDS_OF_HARDWARE)
    yield from (replace(w, severity=NOTE) if log.tells_of_no_end else w for w in map(_warning, log.warnings[:1]))
    first = min((clue.line_number for clue in log.together), default=0)
    before = (clue for clue in log.warnings if clue.line_number < first)
    yield from (_of_network(clue, log) for clue in before if _NETWORK.search(clue.words))
    events = [clue for clue in log.warnings if _OF_ADAPTER.search(clue.words)]
    yield from (_of_adapter(clue) for clue in events[:1] if clue.file in log.lost_at)


# Of NVIDIA's list ("XID Errors"): ECC and row remapping, NVLink, GSP, the bus. Others are often a program's illegal access.
_OF_XID = re.compile(r"^\d{1,4}, (?:pid=[^,]{1,60}, )?(?:name=[^,]{1,60}, )?")
_XIDS_OF_HARDWARE = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143, 145, 149, 154})


def _watchdogs_stand(told: list[Clue]) -> Finding:
    """NCCL's watchdogs hang themselves, which torch ends after a while: by whom first says nothing."""
    ranks = sorted({clue.rank for clue in told if clue.rank >= 0})
    return from_line(
        told[0],
        f"torch's watchdog of NCCL stood for {told[0].numbers[0]} s: a call of CUDA or NCCL does not come back, or a thread "
        "keeps the GIL",
        ranks,
        POSSIBLE,
        "torch ends such a process itself, so who died first is no cause; in which call they stand the log does not say",
        Prescription(
            "gather-backend-evidence", change="run `distdoctor hang-dump` while it stands, with --native; " + LOOK
        ),
        specificity=40,
    )


def _fault_of_device(clue: Clue) -> Finding:
    words = _OF_XID.sub("", clue.words.partition("): ")[2])
    return from_line(
        clue,
        f"NVIDIA's driver reported Xid {clue.numbers[0]} on {clue.operation}: {words[:120]}",
        who(clue),
        LIKELY,
        "the GPU, its memory or its link failed; what the ranks print follows from it",
        Prescription(
            "gather-backend-evidence",
            change="drain that host, look at dmesg and nvidia-smi -q, and run dcgmi diag -r 3 before it is used again",
        ),
        specificity=55,
    )


def _fault_of_gpu(clue: Clue) -> Finding:
    device, _, reason = clue.operation.partition(": ")
    return from_line(
        clue,
        f"ROCm's runtime reported a hardware exception on {device}: {reason}",
        who(clue),
        LIKELY,
        "the processes that use it are aborted, and what other ranks print follows from it; which rank's device it is the line "
        "does not say",
        Prescription(
            "gather-backend-evidence",
            change="look at dmesg (amdgpu: reset, ring timeout, RAS) and amd-smi on that host before it is used again",
        ),
        specificity=55,
    )


def _device(ranks: list[int], clue: Clue, ahead: int) -> Finding:
    return from_line(
        clue,
        f"the device stands at {call_in(clue)}, which the others completed",
        ranks,
        of_one_group(clue.group),
        f"its host has enqueued {ahead} more, so it is the device or its links",
        Prescription("gather-backend-evidence"),
        specificity=40,
    )


def _together(log: LogFacts) -> Finding:
    """All that printed anything timed out in the same call."""
    clues = log.together
    ranks = sorted(clue.rank for clue in clues)
    named_in_log = log.named_ranks
    if log.hides_lines:
        why = "Ray printed the lines that resemble each other once, so others may have timed out in it too (RAY_DEDUP_LOGS=0)"
    elif len(ranks) == named_in_log:
        who_had = f"all {named_in_log} ranks" if named_in_log > 1 else "the only rank"
        which = ", and none completed it: which of them is at fault the log does not show" if named_in_log > 1 else ""
        why = f"{who_had} that the log names had called it{which}; it is the network, a device, or a rank that is not in this log"
    else:
        why = (
            f"{len(ranks)} of the {named_in_log} ranks that the log names printed it; a rank of the group that did not has not "
            "come or is not in this log, and where there is none it is the network or a device"
        )
    return from_line(
        clues[0],
        f"timed out in {call_in(clues[0])}",
        ranks,
        POSSIBLE,
        why,
        Prescription("record-the-job", change=LOOK),
        specificity=20,
    )


def _of_several_groups(clues: list[Clue]) -> Finding:
    return from_line(
        clues[0],
        "timed out in calls of several groups, which the log does not name",
        [clue.rank for clue in clues],
        POSSIBLE,
        "one rank timed out at several numbers, so they count the calls of different groups and are not compared",
        Prescription("record-the-job", change=LOOK),
        specificity=20,
    )


def _unnumbered(clues: list[Clue]) -> Finding:
    shown = next((clue for clue in clues if clue.site), clues[0])
    return from_line(
        shown,
        f"timed out in {call_in(shown)}",
        [clue.rank for clue in clues if clue.rank >= 0],
        POSSIBLE,
        "the watchdogs do not print the number of the call, so whether the ranks were in the same one the log does not show",
        Prescription("record-the-job", change=LOOK),
        specificity=20,
    )


def _warning(clue: Clue) -> Finding:
    words = NCCL_SAYS.split(clue.words, maxsplit=1)[-1]
    look = "search the log for what NCCL said before (NCCL_DEBUG=INFO), and dmesg and ibstat on that host"
    if _OF_A_KERNEL.search(words):
        look = "look for the kernel that failed: NCCL only met its error; CUDA_LAUNCH_BLOCKING=1 shows the line"
    return from_line(
        clue,
        f"NCCL warned: {words[:160]}{' ...' if len(words) > 160 else ''}",
        who(clue),
        POSSIBLE,
        "nothing else in the log says more",
        Prescription("gather-backend-evidence", change=look),
        specificity=10,
    )


_OF_A_KERNEL = re.compile(r"device-side assert|illegal (?:memory access|address)|misaligned address")
_NETWORK = re.compile(r"NET/|\bibv_|Net : |[Ss]ocket")


_OF_ADAPTER = re.compile(r"NET/IB : (\S{1,60}) Got async (?:fatal )?event ?: ?([\w ]{1,80})")
_HOST_OF_NCCL = re.compile(r"(\S{1,200}?):\d{1,9}:\d{1,9} \[")


def _of_adapter(clue: Clue) -> Finding:
    """What the network adapter of a host itself reported, before NCCL lost a peer there."""
    event, host = _OF_ADAPTER.search(clue.words), _HOST_OF_NCCL.search(clue.words)
    assert event is not None
    at = f" on host {host[1]}" if host else ""
    return from_line(
        clue,
        f"the network adapter {event[1]}{at} reported: {event[2].strip()}",
        (),
        LIKELY,
        "NCCL lost a peer there right after it, and what ranks on both sides print follows from that: a cable, a port or its "
        "switch, not the program",
        Prescription(
            "gather-backend-evidence",
            change=f"look at that port (ibstat, ibdiagnet, dmesg, the switch) and drain{at.removeprefix(' on') or ' the host'} "
            "if it happens again",
        ),
        specificity=50,
    )


def _lost_connection(clue: Clue) -> Finding:
    """What NCCL's own network met on the way to a peer: a line that is down, or a peer that is no more."""
    return from_line(
        clue,
        f"NCCL's own network failed{f' on {named(who(clue))}' if who(clue) else ''}: {clue.operation}",
        (),
        POSSIBLE,
        "the way to that peer (adapter, cable, switch, firewall, another interface than NCCL takes), or the peer had ended "
        "before: nothing else in the log says which",
        Prescription(
            "gather-backend-evidence",
            change="look whether the other end still ran then; if so, at both adapters (ibstat, dmesg) and NCCL_SOCKET_IFNAME, "
            "with NCCL_DEBUG=INFO",
        ),
        specificity=14,  # that a process was killed says more
    )


def _of_network(clue: Clue, log: LogFacts) -> Finding:
    """What NCCL said of its network before ranks timed out together."""
    call = call_in(log.together[0])
    return replace(
        _warning(clue),
        why=f"line {clue.line_number} of the log; {counted(len(log.together), 'rank')} timed out in {call} after it",
        specificity=25,
    )


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    calls = [call for wait in incident.waiting for call in wait.calls]
    group = incident.waiting[0].group
    silent = incident.silence.seconds if incident.silence else 0.0
    usual = incident.silence.usual_seconds if incident.silence else 0.0
    backend = told_by_backend(verdict.recording.backend, incident.ranks, group.name if group else "")
    rhythm = f" (usually {seconds(usual)})" if usual else ""
    return Finding(
        title=f"have all entered {short(calls[0])}, but it does not complete",
        ranks=incident.ranks,
        confidence=incident.confidence,
        place=calls[0].site,
        places=tuple(by_site(verdict, calls)),
        evidence={
            "operation": full(calls[0]),
            "group": group.name if group else "",
            "backend": group.backend if group else "",
            "silence_seconds": round(silent, 1),
            "hosts": sorted({verdict.timeline(call.rank).log.host for call in calls}),
        },
        why=f"every member issued the same call, and none has moved for {seconds(silent)}{rhythm}: the program is not the cause"
        + (f"; {backend}" if backend else ""),
        prescriptions=(Prescription("gather-backend-evidence"),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _jammed(silent_for: float) -> Recording:
    """Everybody enters the last all_reduce, and nobody comes back."""
    script = recording(ranks=3)
    for _ in range(5):
        script.collective("all_reduce", [25600], site="train.py:41 train").compute(0.2).step()
    film = script.collective("all_reduce", [25600], site="train.py:41 train").film()
    for runner in film.runners.values():
        runner.log.unreturned()
    last = max(int(runner.log.last_call["entered_ns"]) for runner in film.runners.values())
    found: Recording = film.read(last + int(silent_for * 1e9))
    return found


def sick() -> Recording:
    return _jammed(12)


def healthy() -> Recording:
    return _jammed(0.4)
