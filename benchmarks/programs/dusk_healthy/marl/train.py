"""2-D parallel training: fully_shard over "dp", tensor parallel over "tp".

The processes of one tp group work on the same batch; only the dp coordinate selects data.

    torchrun --nproc_per_node 4 train.py --tp 2
"""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class FeedForward(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.w1, self.w3, self.w2 = nn.Linear(d, h, bias=False), nn.Linear(d, h, bias=False), nn.Linear(h, d, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Net(nn.Module):
    def __init__(self, d=128, h=320, depth=3, classes=20):
        super().__init__()
        self.inp = nn.Linear(64, d)
        self.layers = nn.ModuleList(FeedForward(d, h) for _ in range(depth))
        self.out = nn.Linear(d, classes)

    def forward(self, x):
        x = self.inp(x)
        for l in self.layers:
            x = l(x)
        return self.out(x)


def dataset(n, seed):
    w = torch.randn(64, 20, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 64, generator=g)
    return TensorDataset(x, (torch.sin(x) @ w).argmax(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tp", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
    dp_rank, tp_rank = mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank()

    torch.manual_seed(0)
    model = Net()
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    tp_params = [p for n, p in model.named_parameters() if ".w" in n]
    rest = [p for n, p in model.named_parameters() if ".w" not in n]
    # layers outside of tp are plain replicas over tp, DTensors over two different meshes do not mix in one foreach call
    opts = [torch.optim.AdamW(g, lr=args.lr, foreach=False) for g in (tp_params, rest)]

    train, val = dataset(2560, 1), dataset(512, 2)
    sampler = DistributedSampler(train, num_replicas=mesh["dp"].size(), rank=dp_rank, shuffle=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        t0 = time.time()
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            for o in opts:
                o.zero_grad()
            loss.backward()
            for o in opts:
                o.step()
        model.eval()
        with torch.no_grad():
            x, y = (t.chunk(mesh["dp"].size())[dp_rank] for t in val.tensors)
            hits = (model(x).argmax(1) == y).sum().float()
        dist.all_reduce(hits, group=mesh["dp"].get_group())
        if tp_rank == 0:
            print(f"dp {dp_rank} epoch {epoch} loss {loss.item():.4f} val acc {hits.item() / len(val):.3f} "
                  f"{time.time() - t0:.1f}s", flush=True)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(state, os.path.join(out, "full.pt"))
        print({k: tuple(v.shape) for k, v in list(state.items())[:4]}, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
