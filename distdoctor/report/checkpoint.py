"""What lies in a checkpoint, for a person and for a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from distdoctor.recording.checkpoint.contents import Contents

SHOWN = 12  # names of each kind


def as_text(contents: Contents) -> str:
    return "\n".join(_lines(contents)) + "\n"


def _lines(contents: Contents) -> Iterator[str]:
    tensors = contents.tensors
    total = sum(one.nbytes for one in tensors)
    files = f" in {contents.files} files" if contents.files > 1 else ""
    yield f"{contents.path}: {contents.kind}, {len(tensors):,} tensors, {total / 2**20:,.1f} MiB{files}"
    kinds = Counter(one.dtype for one in tensors)
    if kinds:
        yield "  dtypes    " + ", ".join(f"{name or 'unknown'} x {count:,}" for name, count in kinds.most_common())
    devices = Counter(one.device for one in tensors if one.device)
    if set(devices) - {"cpu"}:
        yield "  saved on  " + ", ".join(f"{name} x {count:,}" for name, count in devices.most_common())
    for prefix, count in contents.wrapped.items():
        yield f"  wrapper   {count:,} of {len(tensors):,} names carry `{prefix}` (DD701 when loaded without the wrapper)"
    for name, value in contents.counters.items():
        yield f"  {name} = {value}"
    for missing in contents.missing:
        yield f"  MISSING   {missing} (DD707)"
    for one in tensors[:SHOWN]:
        yield f"  {one.name}  {list(one.shape)} {one.dtype}"
    if len(tensors) > SHOWN:
        yield f"  ... and {len(tensors) - SHOWN:,} more tensors (--output-format json shows all)"
    if contents.others:
        more = f", and {len(contents.others) - SHOWN:,} more" if len(contents.others) > SHOWN else ""
        yield "  besides   " + ", ".join(contents.others[:SHOWN]) + more


def as_values(contents: Contents) -> dict[str, object]:
    """The same as JSON."""
    return {**asdict(contents), "bytes": sum(one.nbytes for one in contents.tensors), "wrapped": contents.wrapped}
