"""
DD601 more-ranks-than-devices: there are more ranks on a node than CUDA devices that they can see, or two chose the same one.

What it means    A rank asked for a device number that does not exist, or two ranks of one NCCL group chose the same device.
Why it hurts     The rank that finds no device fails, and the others wait for it. NCCL refuses two ranks of one group on one
                 device, or hangs.
How we know      CUDA ("invalid device ordinal") or NCCL ("Duplicate GPU detected") says so in the exception that ended the
                 ranks. For the reference trainings and by `distdoctor preflight`, --nproc is compared with
                 torch.cuda.device_count() before they start.
What to do       Start as many ranks as there are devices, widen CUDA_VISIBLE_DEVICES, and call
                 torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group.
When it is fine  Ranks that stay on the CPU: with gloo or mpi nothing is said.
Source           torch.cuda.device_count; NCCL's init.cc, "Duplicate GPU detected".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.trial import PreflightTrial
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.in_logs import LogFacts, from_line, from_own_error, who
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import from_exception
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording

NO_SUCH_DEVICE = re.compile(r"invalid device ordinal", re.IGNORECASE)
SAME_DEVICE = re.compile(r"Duplicate GPU detected\s*:\s*rank (\d+) and rank (\d+) both on (CUDA device \w+)")
SET_DEVICE = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group'


@check("DD601", "more-ranks-than-devices", severity=ERROR, stands_alone=True, stalls=Stalls.FOREVER, specificity=30)
def examine(trial: PreflightTrial | None, verdict: Verdict | None, log: LogFacts | None) -> Iterator[Finding]:
    machine = trial.machine if trial is not None else None
    if machine is not None and machine.devices and machine.lacks_devices:
        see = "CUDA device is" if machine.devices == 1 else "CUDA devices are"
        yield Finding(
            title=f"{machine.ranks} ranks on {machine.host}, where {machine.devices} {see} visible",
            confidence=CERTAIN,
            evidence={"ranks here": machine.ranks, "CUDA devices here": machine.devices},
            why="NCCL gives each rank of a group a device of its own.",
            prescriptions=(Prescription("a-device-for-each-rank", change=_fewer_ranks(machine.devices)),),
        )
    if log is not None and log.own_error is not None and (told := _told(log.own_error.words)):
        found = from_own_error(log, *told)
        yield _with_all_who_share(found, log, log.own_error)
    elif log is not None:
        warned = [(clue, told) for clue in log.lines(ClueKind.WARNING) if (told := _told(clue.words))]
        yield from (_with_all_who_share(_warned(clue, *told), log, clue) for clue, told in warned[:1])
    for incident in verdict.of_kind(IncidentKind.FAILED) if verdict is not None else ():
        if incident.ending is not None and (told := _told(incident.ending.words)):
            yield from_exception(incident, *told, whose="the driver's")


def _warned(clue: Clue, title: str, cure: Prescription) -> Finding:
    return from_line(clue, title, who(clue), LIKELY, "NCCL says so, and refuses the group", cure, specificity=90)


def _with_all_who_share(found: Finding, log: LogFacts, said: Clue) -> Finding:
    """The finding of one pair with every rank of the group that NCCL found on that device. They are the job's ranks where whoever
    prints a pair is one of it. What is said of no pair stays as it is."""
    if not SAME_DEVICE.search(said.words):
        return found
    clues = [*log.lines(ClueKind.EXCEPTION), *log.lines(ClueKind.WARNING)]
    matches = [(clue.rank, match) for clue in clues for match in SAME_DEVICE.finditer(clue.words)]
    sharing: list[tuple[str, set[int]]] = []  # hosts may have devices of one name
    for _, match in matches:
        pair = {int(match[1]), int(match[2])}
        known = [ranks for device, ranks in sharing if device == match[3] and ranks & pair]
        sharing = [one for one in sharing if one[1] not in known] + [(match[3], pair.union(*known))]
    printed = [(rank, {int(match[1]), int(match[2])}) for rank, match in matches if rank >= 0]
    of_the_job = bool(printed) and all(rank in pair for rank, pair in printed)
    share = ", ".join(f"{named(ranks)} {device}" for device, ranks in sharing)
    title = f"ranks of one NCCL group share a device: {share}"
    return replace(found, title=title, ranks=tuple(sorted(set().union(*(r for _, r in sharing)))) if of_the_job else ())


def _fewer_ranks(devices: int) -> str:
    return f"start {devices} on this node (--nproc {devices}), widen CUDA_VISIBLE_DEVICES, or use --backend gloo"


def _told(words: str) -> tuple[str, Prescription] | None:
    if found := SAME_DEVICE.search(words):
        first, second, device = found.groups()
        title = f"{named((int(first), int(second)))} of one NCCL group share {device}"
        return title, Prescription("a-device-for-each-rank", change=f"call {SET_DEVICE}")
    if NO_SUCH_DEVICE.search(words):
        return (
            "asked for a CUDA device number that this process does not see",
            Prescription(
                "a-device-for-each-rank",
                change="start as many ranks on this node as it has devices (--nproc, --nproc-per-node), widen "
                "CUDA_VISIBLE_DEVICES, and choose by LOCAL_RANK rather than RANK",
            ),
        )
    return None


def sick() -> Recording:
    """Four ranks on a node of two devices."""
    return recording(ranks=4).raises(
        (2, 3), "torch.AcceleratorError: CUDA error: invalid device ordinal", site="train.py:8 main"
    ).finished(survivors="fail")  # fmt: skip


def healthy() -> Recording:
    """Another error of the device."""
    return recording(ranks=4).raises(
        (2, 3), "torch.AcceleratorError: CUDA error: device-side assert triggered", site="train.py:8 main"
    ).finished(survivors="fail")  # fmt: skip
