"""
DD502 data-parallel: nn.DataParallel copies the model to every device in every step; one process per device would not.

What it means    One Python process drives all devices: in every step it scatters the batch, copies all parameters to each
                 device, gathers the outputs on the first one and sums gradients there.
Why it hurts     The copies and the single interpreter take time that grows with the number of devices; the first device holds
                 more than the others and runs out of memory first. It cannot span machines.
How we know      The script created an nn.DataParallel over two or more devices.
What to do       Run one process per device with DistributedDataParallel, started by torchrun. `distdoctor compare --strategies
                 single,dp,ddp` measures the ratio on your machine.
When it is fine  On the CPU or with one device it only calls the module: nothing is reported.
Source           torch.nn.DataParallel: "It is recommended to use DistributedDataParallel".
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.events import RankEvents
from distdoctor.diagnosis.finding import NOTE, Finding, Place, Prescription
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import DataParallelMade
from distdoctor.testing.rank_trace import TraceBuilder


@check("DD502", "data-parallel", severity=NOTE, live=False, stands_alone=True)
def examine(noted: RankEvents) -> Iterator[Finding]:
    for rank, made in noted.events(DataParallelMade):
        devices, count, site = list(made.devices), len(made.devices), made.site
        if count < 2:
            continue
        yield Finding(
            title=f"nn.DataParallel over {count} devices, in one process",
            ranks=(rank,),
            place=site,
            places=(Place(site, (rank,), "created here"),),
            evidence={"devices": devices, "count": count},
            why=f"every step copies the parameters to {count} devices and gathers on device {devices[0]}",
            prescriptions=(Prescription("one-process-per-device"),),
        )


def _job(*devices: str) -> Recording:
    log = TraceBuilder(0, world_size=1)
    log.note(DataParallelMade(devices), site="train.py:14 main")
    return Recording(Job(argv=("train.py",), world_size=1), {0: log.build()})


def sick() -> Recording:
    return _job("0", "1", "2", "3")


def healthy() -> Recording:
    """Without a device it is a plain module."""
    return _job()
