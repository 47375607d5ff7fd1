import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from checkpoint import CheckpointManager


class MLPBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, vocab=96, d=32, depth=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(MLPBlock(d) for _ in range(depth))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.emb(ids).cumsum(1)
        for b in self.blocks:
            h = b(h)
        return self.out(h)


def build(cfg):
    torch.manual_seed(cfg.seed)
    model = Net()
    for b in model.blocks:
        fully_shard(b)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=cfg.steps)
    return model, opt, sched


def batch_for(step, rank, cfg):
    gen = torch.Generator().manual_seed(step * 131 + rank)
    base = torch.randint(0, 96, (cfg.batch, 1), generator=gen)
    return (base + 5 * torch.arange(17)) % 96


def train(cfg, root, until, resume):
    model, opt, sched = build(cfg)
    manager = CheckpointManager(root, model, opt, sched)
    step = manager.load() if resume else 0
    if dist.get_rank() == 0:
        print(f"{'resuming' if resume else 'starting'} at step {step}", flush=True)
    while step < until:
        ids = batch_for(step, dist.get_rank(), cfg)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        step += 1
        if step % 4 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"step {step} loss {shown.item():.4f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
    manager.save(step)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=28)
    p.add_argument("--segment", type=int, default=14, help="steps per allocation")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=5)
    cfg = p.parse_args()
    dist.init_process_group("cpu:gloo")
    box = [tempfile.mkdtemp(prefix="ckpt_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    for start in range(0, cfg.steps, cfg.segment):
        train(cfg, box[0], min(cfg.steps, start + cfg.segment), resume=start > 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
