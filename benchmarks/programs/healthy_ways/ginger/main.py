"""Low-rank adaptation: the base comes slowly to rank zero, is handed round, and stays frozen."""
import argparse
import hashlib
import io
import os
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from lora import adapter_state, inject

VOCAB, LENGTH = 30, 16


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class Base(nn.Module):
    def __init__(self, dim=64, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, dim), nn.Embedding(LENGTH, dim)
        self.layers = nn.ModuleList(nn.ModuleDict({
            "n1": nn.LayerNorm(dim), "attn": Attention(dim), "n2": nn.LayerNorm(dim),
            "ff": nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))}) for _ in range(depth))
        self.score = nn.Linear(dim, 3)

    def forward(self, ids):
        h = self.tok(ids) + self.pos.weight
        for l in self.layers:
            h = h + l["attn"](l["n1"](h))
            h = h + l["ff"](l["n2"](h))
        return self.score(h.mean(1))


def published_weights():
    """What the model store would hold."""
    gen_state = torch.random.get_rng_state()
    torch.manual_seed(2024)
    buf = io.BytesIO()
    torch.save(Base().state_dict(), buf)
    torch.random.set_rng_state(gen_state)
    return buf.getvalue()


def fetch(path, seconds, chunks=24):
    """Throttled transfer from the store, written in pieces and checked at the end."""
    blob = published_weights()
    size = -(-len(blob) // chunks)
    with open(path + ".part", "wb") as f:
        for i in range(chunks):
            f.write(blob[i * size:(i + 1) * size])
            time.sleep(seconds / chunks)
    with open(path + ".part", "rb") as f:
        if hashlib.sha256(f.read()).hexdigest() != hashlib.sha256(blob).hexdigest():
            raise IOError("incomplete transfer")
    os.replace(path + ".part", path)


def dominant(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    ids = torch.randint(0, VOCAB, (n, LENGTH), generator=g)
    band = torch.randint(0, VOCAB // 3, (n, LENGTH), generator=g) + y[:, None] * (VOCAB // 3)
    return TensorDataset(torch.where(torch.rand(n, LENGTH, generator=g) < 0.3, band, ids), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--rank", type=int, default=4)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--transfer-seconds", type=float, default=11.0)
    ap.add_argument("--seed", type=int, default=37)
    args = ap.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = Base()

    payload = [None]
    if rank == 0:
        with tempfile.TemporaryDirectory(prefix="ginger_") as tmp:
            path = os.path.join(tmp, "base.pt")
            t0 = time.time()
            print("fetching base weights ...", flush=True)
            fetch(path, args.transfer_seconds)
            print(f"fetched in {time.time() - t0:.1f} s", flush=True)
            payload = [torch.load(path, map_location="cpu")]
    dist.broadcast_object_list(payload, src=0)
    model.load_state_dict(payload[0])
    del payload

    for p in model.parameters():
        p.requires_grad_(False)
    model.score = nn.Linear(model.score.in_features, 3)
    inject(model, {"q", "v", "o"}, rank=args.rank)
    ddp = DDP(model)
    torch.manual_seed(args.seed * 100 + rank)
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0)
    train, held = dominant(1536, 1), dominant(384, 2)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    if rank == 0:
        print(f"training {sum(p.numel() for p in trainable)} of {sum(p.numel() for p in model.parameters())} weights", flush=True)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        ddp.train()
        tally = torch.zeros(2)
        for ids, y in loader:
            loss = F.cross_entropy(ddp(ids), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            tally += torch.tensor([loss.item() * len(y), float(len(y))])
        model.eval()
        with torch.no_grad():
            ids, y = (t[rank::world] for t in held.tensors)
            hits = torch.tensor([(model(ids).argmax(1) == y).sum().item(), float(len(y))])
        dist.all_reduce(tally)
        dist.all_reduce(hits)
        if rank == 0:
            print(f"epoch {epoch} loss {(tally[0] / tally[1]).item():.4f} accuracy {(hits[0] / hits[1]).item():.3f}", flush=True)
    if rank == 0:
        os.makedirs("runs/ginger", exist_ok=True)
        torch.save(adapter_state(model), "runs/ginger/adapter.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
