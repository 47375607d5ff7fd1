"""
DD414 loaded-on-every-rank: every rank of a host reads the whole model into host memory before it keeps a shard of it.

What it means    Each rank builds the model and calls torch.load for all of its weights; then fully_shard (or FSDP) keeps one
                 shard and drops the rest. Meanwhile the host holds one copy of the model per rank, two while both the module
                 and the loaded weights exist.
Why it hurts     Eight ranks and 70 billion parameters take a terabyte: the kernel's OOM killer takes a rank during start-up,
                 long before the GPU is full.
How we know      Every rank of a host read the same file with torch.load before sharding, and the sharded parameters show how
                 large the whole model is. The sum is computed, not measured; a memory-mapped file (mmap=True) costs less.
What to do       Build on the meta device and load shards: torch.distributed.checkpoint, or read on rank 0 only and
                 set_model_state_dict(..., StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)).
When it is fine  Models that fit once per rank: a note, and nothing below 16 MiB.
Source           torch.distributed.checkpoint.state_dict.StateDictOptions; torch.device("meta"); Module.to_empty.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.events import RankEvents
from distdoctor.diagnosis.finding import LIKELY, NOTE, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import Averaging, Loading
from distdoctor.recording.trace.layout import TensorFlag

MIB = 1 << 20
WORTH = 16 * MIB  # of one model
ITEM_BYTES = {"float64": 8, "float16": 2, "bfloat16": 2}  # others: 4
SHARDING = ("fully_shard", "FullyShardedDataParallel")


@check("DD414", "loaded-on-every-rank", severity=NOTE, live=False)
def examine(noted: RankEvents, gradients: Gradients) -> Iterator[Finding]:
    sharded_at = {
        rank: min(one.at_ns for other, one in noted.events(Averaging) if other == rank and one.by in SHARDING)
        for rank in {rank for rank, one in noted.events(Averaging) if one.by in SHARDING}
    }
    loads: dict[tuple[str, str], dict[int, Loading]] = defaultdict(dict)
    for rank, load in noted.events(Loading):
        if load.by == "torch.load" and load.at_ns < sharded_at.get(rank, 0):
            loads[noted.logs[rank].host, load.path].setdefault(rank, load)
    for (host, path), by_rank in loads.items():
        ranks = tuple(sorted(by_rank))
        here = [rank for rank, log in noted.logs.items() if log.host == host]
        size = _whole_bytes(gradients.ranks[ranks[0]])
        if len(ranks) > 1 and len(ranks) == len(here) and size >= WORTH:
            yield _finding(ranks, by_rank[ranks[0]], path, host, size)


def _whole_bytes(own: RankGradients) -> int:
    """Of all parameters that are sharded, as if they were not."""
    return sum(
        math.prod(int(word) for word in tensor.shape.strip("[]").split(",") if word.strip())
        * ITEM_BYTES.get(tensor.dtype, 4)
        for tensor in own.tensors.values()
        if tensor.flags & TensorFlag.SHARDED
    )


def _finding(ranks: tuple[int, ...], load: Loading, path: str, host: str, size: int) -> Finding:
    each = size / MIB
    return Finding(
        title=f"each of {len(ranks)} ranks on {host} reads the whole model before sharding it: "
        f"{len(ranks) * each:.0f} MiB of host memory, twice that including the module's own copy",
        ranks=ranks,
        confidence=LIKELY,
        place=load.site,
        places=(Place(load.site, ranks, "reads the whole model"),),
        evidence={"bytes_per_rank": size, "bytes_per_host": size * len(ranks), "file": path},
        why=f"{each:.0f} MiB are sharded over the ranks, but every rank first read all of them from {path}",
        prescriptions=(
            Prescription(
                "load-shards", effect=f"{(len(ranks) - 1) * each:.0f} MiB of {len(ranks) * each:.0f} on {host}"
            ),
        ),
        at_ns=load.at_ns,
    )


def _job(readers: tuple[int, ...]) -> Recording:
    from distdoctor.testing.gradients import trained_job

    shapes = {"body.weight": "[4096, 4096]", "head.weight": "[10, 4096]"}
    job = trained_job(2, wrapped=False, parameters=shapes, flags=dict.fromkeys(shapes, int(TensorFlag.SHARDED)))
    job.note(Loading("/models/whole.pt", "torch.load"), only=readers, site="train.py:12 main")
    job.note(Averaging((0, 1), "fully_shard"), site="train.py:15 main")
    return job.initial().step().step().recording()


def sick() -> Recording:
    return _job((0, 1))


def healthy() -> Recording:
    """Rank 0 reads, and the others get their shards from it."""
    return _job((0,))
