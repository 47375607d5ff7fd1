import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

logger = logging.getLogger(__name__)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class Decoder(nn.Module):
    def __init__(self, vocab=48, dim=32, depth=2, heads=2, length=16):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.tok(ids) + self.pos(torch.arange(t))
        mask = torch.full((t, t), float("-inf")).triu(1)
        for b in self.blocks:
            x = b(x, mask)
        return self.head(x)


def stream(rank, batch, vocab=48, length=16):
    g = torch.Generator().manual_seed(400 + rank)
    while True:
        start = torch.randint(0, vocab, (batch, 1), generator=g)
        stride = torch.randint(1, 4, (batch, 1), generator=g)
        yield (start + stride * torch.arange(length + 1)) % vocab


def weight_norms(model):
    return {n: p.detach().norm().full_tensor().item() for n, p in model.named_parameters() if n.endswith("weight")}


class Meter:
    """Collects numbers of the run and prints them from the first process."""

    def __init__(self, model, every):
        self.model = model
        self.every = every
        self.rows = []

    def update(self, step, loss):
        if step % self.every:
            return
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        norms = weight_norms(self.model)
        if dist.get_rank() == 0:
            self.rows.append({"step": step, "loss": mean.item(), **norms})
            logger.info("step %d loss %.4f largest weight norm %.3f", step, mean.item(), max(norms.values()))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--log-every", type=int, default=15)
    ap.add_argument("--clip", type=float, default=1.0)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    torch.manual_seed(0)
    model = Decoder()
    for b in model.blocks:
        fully_shard(b, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    meter = Meter(model, args.log_every)
    data = stream(dist.get_rank(), args.batch)
    for step in range(1, args.steps + 1):
        ids = next(data)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        opt.step()
        meter.update(step, loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
