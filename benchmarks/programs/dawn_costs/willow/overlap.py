"""Reduces gradients while the backward pass still runs; metrics arrive one step late."""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class OverlappedReducer:
    """A bucket is sent as soon as all of its gradients are there."""

    def __init__(self, model, bucket_bytes=1 << 20):
        self.world = dist.get_world_size()
        self.buckets, self.where, current, size = [], {}, [], 0
        for p in reversed(list(model.parameters())):
            current.append(p)
            size += p.numel() * p.element_size()
            if size >= bucket_bytes:
                self.buckets.append(current)
                current, size = [], 0
        if current:
            self.buckets.append(current)
        for i, bucket in enumerate(self.buckets):
            for p in bucket:
                self.where[p] = i
                p.register_post_accumulate_grad_hook(self._ready)
        self._reset()

    def _reset(self):
        self.missing = [len(b) for b in self.buckets]
        self.flying, self.next_to_send = [], 0

    def _ready(self, p):
        self.missing[self.where[p]] -= 1
        while self.next_to_send < len(self.buckets) and self.missing[self.next_to_send] == 0:
            bucket = self.buckets[self.next_to_send]
            flat = torch.cat([q.grad.flatten() for q in bucket])
            self.flying.append((dist.all_reduce(flat, async_op=True), flat, bucket))
            self.next_to_send += 1

    def finish(self):
        for work, flat, bucket in self.flying:
            work.wait()
            flat /= self.world
            for q, piece in zip(bucket, flat.split([q.numel() for q in bucket])):
                q.grad.copy_(piece.view_as(q))
        self._reset()


class LateMetric:
    def __init__(self):
        self.work = self.value = None

    def push(self, loss):
        ready = None
        if self.work is not None:
            self.work.wait()
            ready = self.value.item() / dist.get_world_size()
        self.value = loss.detach().clone()
        self.work = dist.all_reduce(self.value, async_op=True)
        return ready


def mixer(patches, dim):
    return nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))


class MixerNet(nn.Module):
    def __init__(self, patches=16, dim=128, depth=4, classes=10):
        super().__init__()
        self.stem = nn.Linear(48, dim)
        self.tokens = nn.ModuleList(nn.Linear(patches, patches) for _ in range(depth))
        self.channels = nn.ModuleList(mixer(patches, dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.stem(x)
        for tok, ch in zip(self.tokens, self.channels):
            x = x + tok(x.transpose(1, 2)).transpose(1, 2)
            x = x + ch(x)
        return self.head(x.mean(1))


def main(steps=120, batch=48):
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(33)
    model = MixerNet()
    reducer, metric = OverlappedReducer(model), LateMetric()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    means = torch.randn(10, 16, 48, generator=torch.Generator().manual_seed(8))
    gen = torch.Generator().manual_seed(700 + rank)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        y = torch.randint(10, (batch,), generator=gen)
        x = 0.25 * means[y] + torch.randn(batch, 16, 48, generator=gen)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        reducer.finish()
        opt.step()
        shown = metric.push(loss)
        if step % 10 == 0 and rank == 0:
            print(f"step {step - 1} loss {shown:.4f} {100 * (time.perf_counter() - began):.0f} ms", flush=True)
            began = time.perf_counter()
    metric.work.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
