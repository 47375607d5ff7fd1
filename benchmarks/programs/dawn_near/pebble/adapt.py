"""Adapts a pretrained small transformer with low-rank matrices and records time and memory per step."""
import argparse
import gc
import resource
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torchvision  # noqa: F401
from torch.nn.parallel import DistributedDataParallel as DDP


class LowRank(nn.Module):
    def __init__(self, base, rank=8, alpha=16):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * base.in_features ** -0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.a), self.b)


class Net(nn.Module):
    def __init__(self, vocab=64, dim=64, depth=2, length=24):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(length, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.enc(self.tok(ids) + self.pos))


def adapt(net, rank):
    for p in net.parameters():
        p.requires_grad_(False)
    for layer in net.enc.layers:
        layer.linear1 = LowRank(layer.linear1, rank)
        layer.linear2 = LowRank(layer.linear2, rank)
    net.head = LowRank(net.head, rank)
    return net


def batch(n, shift, g):
    ids = torch.randint(0, 64, (n, 24), generator=g)
    return ids, (ids * 3 + shift) % 64


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=45)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lora-rank", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = adapt(Net(), args.lora_rank)
    model = DDP(net)
    params = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=1e-2)
    g = torch.Generator().manual_seed(rank)
    durations, losses, memory = [], [], []
    tic = time.perf_counter()
    for step in range(1, args.steps + 1):
        ids, target = batch(args.batch, 5, g)
        loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        losses.append(loss.item())
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        gc.collect()
        toc = time.perf_counter()
        durations.append(toc - tic)
        tic = toc
        if step % 15 == 0 and rank == 0:
            print(f"step {step} loss {statistics.mean(losses[-15:]):.4f} "
                  f"{1000 * statistics.mean(durations[-15:]):.0f} ms/step peak {max(memory)} MiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
