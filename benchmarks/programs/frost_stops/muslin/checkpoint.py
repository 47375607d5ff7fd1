import io
import json

import torch
import torch.distributed as dist


def _shard(state, rank, world):
    return {k: v for i, (k, v) in enumerate(sorted(state.items())) if i % world == rank}


def _dump(obj):
    buf = io.BytesIO()
    torch.save(obj, buf)
    return buf.getvalue()


def save(bucket, model, step):
    """Writes one part per process and an index that lists them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    part = _shard(model.state_dict(), rank, world)
    payload = _dump(part)
    index = [None] * world
    dist.all_gather_object(index, {"file": f"{step:05d}-{rank}.pt", "keys": sorted(part), "bytes": len(payload)})
    bucket.put(f"{step:05d}-{rank}.pt", payload)
    if rank == 0:
        bucket.put(f"{step:05d}.json", json.dumps(index).encode())
    return sum(e["bytes"] for e in index)
