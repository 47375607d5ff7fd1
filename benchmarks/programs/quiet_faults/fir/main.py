import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from adapters import adapt, trainable_state


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.ff_in = nn.Linear(width, width * 2)
        self.ff_out = nn.Linear(width * 2, width)

    def forward(self, x):
        h = self.ln(x)
        w = (self.query(h) @ h.transpose(1, 2) / h.size(-1) ** 0.5).softmax(-1)
        x = x + w @ self.value(h)
        return x + self.ff_out(F.gelu(self.ff_in(x)))


class Base(nn.Module):
    def __init__(self, vocab=50, width=48, layers=3, classes=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Mixer(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def sentences(n, seed, vocab=50, length=16, classes=6):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(classes, (n,), generator=g)
    ids = torch.randint(vocab, (n, length), generator=g)
    slots = torch.rand(n, length, generator=g) < 0.35
    topic = (label[:, None] * 8 + torch.randint(0, 8, (n, length), generator=g)) % vocab
    return TensorDataset(torch.where(slots, topic, ids), label)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--accum", type=int, default=2)
    ap.add_argument("--rank-of-adapters", type=int, default=4)
    ap.add_argument("--lr", type=float, default=8e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2024)
    net = adapt(Base(), {"query", "value", "ff_in"}, args.rank_of_adapters)
    model = DDP(net)
    torch.manual_seed(7000 + rank)
    train, val = sentences(1024, 1), sentences(256, 2)
    sampler = DistributedSampler(train, seed=3)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    assert len(loader) % args.accum == 0
    params = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=args.lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(loader) // args.accum)
    if rank == 0:
        print(f"training {sum(p.numel() for p in params)} of {sum(p.numel() for p in net.parameters())} values", flush=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        net.train()
        seen = torch.zeros(2)
        for i, (ids, label) in enumerate(loader):
            last = (i + 1) % args.accum == 0
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    logits = model(ids)
                loss = F.cross_entropy(logits.float(), label)
                (loss / args.accum).backward()
            if last:
                nn.utils.clip_grad_norm_(params, 1.0)
                opt.step()
                sched.step()
                opt.zero_grad(set_to_none=True)
            seen += torch.tensor([loss.item() * len(label), float(len(label))])
        dist.all_reduce(seen)
        net.eval()
        with torch.no_grad():
            ids, label = val.tensors
            hit = (net(ids[rank::world]).argmax(1) == label[rank::world]).sum().float()
        dist.all_reduce(hit)
        if rank == 0:
            print(f"epoch {epoch} loss {seen[0] / seen[1]:.4f} acc {hit.item() / len(label):.3f}", flush=True)
    if rank == 0:
        os.makedirs("runs", exist_ok=True)
        torch.save(trainable_state(net), "runs/adapters.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
