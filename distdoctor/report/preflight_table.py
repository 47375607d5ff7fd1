"""What the preflight measured, as text."""

from __future__ import annotations

from distdoctor.recording.preflight import Preflight


def render(found: Preflight) -> str:
    """The answer where nothing was found, and the table."""
    return (
        f"ready: {len(found.ranks)} of {found.expected} ranks met with {found.backend}; nothing found\n{table(found)}"
    )


def table(found: Preflight) -> str:
    """What was measured, a line each."""
    here = found.machine
    lines = [
        f"  {here.host}: {here.cores:g} cores, {here.ranks} ranks, OMP_NUM_THREADS {here.threads or 'not set'}"
        + (f", /dev/shm {here.shm_free >> 20:,} MiB free" if here.shm_free is not None else "")
    ]
    met = [one for one in found.ranks.values() if not one.trouble]
    if met:
        versions = ", ".join(f"{name} {value}" for name, value in met[0].versions.items() if value)
        lines.append(f"  {versions}")
        lines.append(f"  joined in {max(one.joined_seconds for one in met):.2f} s")
        for size in met[0].sums:
            seconds = max(one.sums[size][0] for one in met)
            lines.append(f"  all_reduce of {size >> 10:,} KiB: {seconds * 1e3:.2f} ms, {size / seconds / 1e9:.2f} GB/s")
    lines += [f"  NCCL: {one.subject}: {one.words}" for one in dict.fromkeys(found.remarks)]
    return "\n".join(lines) + "\n"
