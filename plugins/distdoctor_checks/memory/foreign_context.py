"""
DD409 foreign-context: a rank has a CUDA context on another rank's device.

What it means    Something put a tensor on that device or merely touched it: torch.load without map_location, .cuda() or
                 torch.cuda.empty_cache() before set_device. The context stays until the process ends.
Why it hurts     Each context takes a few hundred MiB of that device, usually the first one, and its own rank runs out of memory
                 before the others.
How we know      After the third step each rank asks the driver on which devices it has a context, and its allocator how much it
                 holds there. Devices are identified by uuid.
What to do       Call torch.cuda.set_device(local_rank) before anything else; pass map_location to torch.load; or give each
                 process its own CUDA_VISIBLE_DEVICES.
When it is fine  A process that drives several devices that no other rank uses; two ranks that must share one device.
Source           CUDA driver API, cuDevicePrimaryCtxGetState; torch.cuda.set_device.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.memory.memory import Memory, mib
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import DeviceContext
from distdoctor.testing.memory import MIB, memory_job


@check("DD409", "foreign-context", severity=WARNING, live=False)
def examine(memory: Memory) -> Iterator[Finding]:
    seen = {rank: list(_contexts(log)) for rank, log in memory.recording.ranks.items()}
    owners = {device: rank for rank, found in seen.items() for device, own, _, _ in found if own}
    guests: dict[str, dict[int, tuple[int, SourceLine]]] = {}
    for rank, found in seen.items():
        for device, own, cached, site in found:
            if not own and owners.get(device, rank) != rank:
                guests.setdefault(device, {})[rank] = (cached, site)
    for device, by_rank in guests.items():
        yield _finding(owners[device], by_rank)


def _contexts(log: RankTrace) -> Iterator[tuple[str, bool, int, SourceLine]]:
    for seen in log.noted(DeviceContext):
        yield seen.device, seen.own, seen.cached, seen.site


def _finding(owner: int, by_rank: dict[int, tuple[int, SourceLine]]) -> Finding:
    ranks = tuple(sorted(by_rank))
    cached = sum(size for size, _ in by_rank.values())
    site = by_rank[ranks[0]][1]
    several = len(ranks) > 1
    return Finding(
        title=f"{named(ranks)} {'have CUDA contexts' if several else 'has a CUDA context'} on the device of rank {owner}",
        ranks=ranks,
        confidence=CERTAIN,
        place=site,
        places=(Place(site, ranks, "seen after this step; it was created earlier"),),
        evidence={"owner": owner, "cached_bytes": {rank: size for rank, (size, _) in by_rank.items()}},
        why=f"{named(ranks)} hold {mib(cached)} there in PyTorch's allocator, plus a few hundred MiB each for the context",
        prescriptions=(Prescription("stay-on-the-own-device"),),
    )


def _job(on_first: tuple[int, ...]) -> Recording:
    job = memory_job(4).trains(4, device={0: 0, 1: 1, 2: 2, 3: 3}, capacity=80_000 * MIB, peak=9_000 * MIB)
    for rank in range(4):
        log = job.logs[rank]
        log.note(DeviceContext(f"host GPU-{rank}", own=True, cached=9_000 * MIB), site="train.py:33 train")
        if rank in on_first:
            log.note(DeviceContext("host GPU-0", own=False, cached=2 * MIB), site="train.py:33 train")
    return job.recording()


def sick() -> Recording:
    return _job((1, 2, 3))


def healthy() -> Recording:
    """Every rank on a device of its own."""
    return _job(())
