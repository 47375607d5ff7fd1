import argparse
import json

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from layers import Block


class LM(nn.Module):
    def __init__(self, vocab, dim, depth, heads, ctx):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(ctx, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)

    def forward(self, x):
        h = self.emb(x) + self.pos[: x.size(1)]
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h))


def sharded(name):
    return any(k in name for k in (".q.", ".k.", ".v.", ".up.")) or name.endswith(("o.weight", "down.weight"))


def clip(model, limit):
    part = sum(p.grad.pow(2).sum() for n, p in model.named_parameters() if sharded(n))
    dist.all_reduce(part)
    whole = sum(p.grad.pow(2).sum() for n, p in model.named_parameters() if not sharded(n))
    norm = (part + whole).sqrt()
    for p in model.parameters():
        p.grad.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
    return norm.item()


def copy_task(bsz, half, vocab, gen):
    a = torch.randint(1, vocab, (bsz, half), generator=gen)
    s = torch.cat([a, torch.zeros(bsz, 1, dtype=torch.long), a], 1)
    return s[:, :-1], s[:, 1:]


def loss_on(model, x, y, half):
    return F.cross_entropy(model(x)[:, half:].flatten(0, 1), y[:, half:].flatten())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default="config.json")
    args = ap.parse_args()
    cfg = json.load(open(args.config))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(cfg["seed"])
    model = LM(cfg["vocab"], cfg["dim"], cfg["depth"], cfg["heads"], 2 * cfg["half"] + 1)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], betas=(0.9, 0.98))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / cfg["warmup"]))
    gen = torch.Generator().manual_seed(cfg["seed"] + 1)
    test = copy_task(64, cfg["half"], cfg["vocab"], torch.Generator().manual_seed(12345))
    for step in range(cfg["steps"]):
        x, y = copy_task(cfg["batch"], cfg["half"], cfg["vocab"], gen)
        loss = loss_on(model, x, y, cfg["half"])
        opt.zero_grad()
        loss.backward()
        norm = clip(model, 1.0)
        opt.step()
        sched.step()
        if (step + 1) % cfg["eval_every"] == 0:
            with torch.no_grad():
                v = loss_on(model, *test, cfg["half"])
            if rank == 0:
                print(f"step {step + 1} loss {loss.item():.4f} norm {norm:.2f} test {v.item():.4f}", flush=True)
    torch.save(model.state_dict(), f"tp_rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
