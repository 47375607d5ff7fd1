"""Sharded training with snapshots written by a background thread over its own group."""
import os
import shutil
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

ROOT = "snapshots"


def main():
    dist.init_process_group("gloo")
    writer_group = dist.new_group(backend="gloo")
    rank = dist.get_rank()
    if rank == 0:
        shutil.rmtree(ROOT, ignore_errors=True)
    dist.barrier()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))
    for layer in (net[0], net[2]):
        fully_shard(layer)
    fully_shard(net)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)
    w = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(rank)
    pending, kept = None, []
    for step in range(1, 81):
        x = torch.randn(48, 64, generator=g)
        loss = nn.functional.cross_entropy(net(x), (x @ w).argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            if pending is not None:
                pending.result()
            model_sd, opt_sd = get_state_dict(net, opt)
            path = os.path.join(ROOT, f"step{step}")
            pending = dcp.async_save({"model": model_sd, "optim": opt_sd}, checkpoint_id=path, process_group=writer_group)
            kept.append(path)
            if len(kept) > 3 and rank == 0:
                shutil.rmtree(kept[len(kept) - 4], ignore_errors=True)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    pending.result()
    before = [p.to_local().clone() for p in net.parameters()]
    model_sd, opt_sd = get_state_dict(net, opt)
    blob = {"model": model_sd, "optim": opt_sd}
    dcp.load(blob, checkpoint_id=kept[-1])
    assert all(torch.equal(b, p.to_local()) for b, p in zip(before, net.parameters()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
