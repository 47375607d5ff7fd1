"""
DD507 synchronising-every-step: a line makes Python wait for the device in every step.

What it means    `.item()`, `.cpu()`, `float(loss)`, `print(loss)` or torch.cuda.synchronize() needs a number that the device
                 has not computed yet. Python blocks until the device has caught up, and then has nothing queued for it.
Why it hurts     The device idles while Python prepares the next kernels; each step pays the launch time that queueing would
                 hide.
How we know      Eight steps after warm-up were watched: this line of the user's code waited in every one of them. The time
                 inside is an upper bound on the saving, because the device was mostly busy meanwhile.
What to do       Keep the loss as a tensor (`total += loss.detach()`) and read it only every N steps.
When it is fine  On the CPU these calls cost nothing. Reads by torch itself (GradScaler) and loops under torch.compile are not
                 examined.
Source           PyTorch performance tuning guide: avoid unnecessary CPU-GPU synchronization.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.events import RankEvents
from distdoctor.diagnosis.finding import LIKELY, NOTE, Finding, Place, Prescription
from distdoctor.recording.recording import Job, Recording, SourceLine
from distdoctor.recording.trace.events import DeviceWait
from distdoctor.testing.rank_trace import TraceBuilder

SYNCHRONIZE = "synchronize"


@check("DD507", "synchronising-every-step", severity=NOTE, live=False, stands_alone=True)
def examine(noted: RankEvents) -> Iterator[Finding]:
    found: dict[tuple[SourceLine, str], dict[int, tuple[int, int, int]]] = {}
    for rank, one in noted.events(DeviceWait):
        if one.times >= one.steps > 0:
            found.setdefault((one.site, one.by), {})[rank] = (one.times, one.steps, one.nanoseconds)
    for (site, name), by_rank in found.items():
        ranks = tuple(sorted(by_rank))
        times, steps, nanoseconds = max(by_rank.values(), key=lambda seen: seen[2])
        milliseconds = nanoseconds / steps / 1e6
        words = "torch.cuda.synchronize()" if name == SYNCHRONIZE else f"{name}() of a CUDA tensor"
        yield Finding(
            title=f"{words} {_often(times / steps)} makes Python wait {milliseconds:.2f} ms a step for the device",
            ranks=ranks,
            confidence=LIKELY,
            place=site,
            places=(Place(site, ranks, "waits for the device"),),
            evidence={"calls": times, "steps": steps, "seconds_per_step": round(milliseconds / 1e3, 6), "by": name},
            why=f"{times} times in {steps} steps; up to {milliseconds:.2f} ms of each step, minus the time the device is busy",
            prescriptions=(Prescription("read-now-and-then"),),
        )


def _often(per_step: float) -> str:
    return "in each step" if per_step < 1.5 else f"{per_step:.0f} times in each step"


def _job(times: int) -> Recording:
    log = TraceBuilder(0, world_size=1)
    log.note(DeviceWait("item", times, 8, times * 3_000_000), site="train.py:35 train")
    return Recording(Job(argv=("train.py",), world_size=1), {0: log.build()})


def sick() -> Recording:
    return _job(8)


def healthy() -> Recording:
    """The loss is read once in those steps."""
    return _job(1)
