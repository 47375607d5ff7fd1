"""Character model with a sharded optimizer; jobs on our queue are cut into short sessions."""
import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from zero import SlicedAdam


class CharNet(nn.Module):
    def __init__(self, vocab, ctx, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.up = nn.Linear(ctx * dim, 4 * dim)
        self.norm = nn.LayerNorm(4 * dim)
        self.out = nn.Linear(4 * dim, vocab)

    def forward(self, x):
        return self.out(self.norm(F.gelu(self.up(self.emb(x).flatten(1)))))


def corpus(rank, n=40000, vocab=48):
    g = torch.Generator().manual_seed(31)
    table = torch.randint(vocab, (vocab, 3), generator=g)
    g = torch.Generator().manual_seed(900 + rank)
    pick = torch.randint(3, (n,), generator=g).tolist()
    out, cur = [], rank
    for k in pick:
        cur = int(table[cur, k])
        out.append(cur)
    return torch.tensor(out)


class Session:
    def __init__(self, cfg, folder):
        self.cfg, self.folder = cfg, folder
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.net = CharNet(cfg.vocab, cfg.ctx, cfg.dim)
        self.opt = SlicedAdam(self.net.parameters(), lr=cfg.lr)
        self.gen = torch.Generator().manual_seed(cfg.seed + 13 * self.rank)
        self.ema_loss = None
        self.done = 0

    def file(self, r):
        return os.path.join(self.folder, f"part_{r:02d}_of_{self.world:02d}.pt")

    def resume(self):
        if not os.path.exists(self.file(self.rank)):
            return
        s = torch.load(self.file(self.rank), weights_only=True)
        self.opt.restore(s["opt"])
        self.gen.set_state(s["gen"])
        self.ema_loss, self.done = s["ema_loss"], s["done"]

    def suspend(self):
        e = torch.tensor([self.ema_loss])
        dist.all_reduce(e)
        torch.save(dict(opt=self.opt.state(), gen=self.gen.get_state(),
                        ema_loss=(e / self.world).item(), done=self.done), self.file(self.rank))
        dist.barrier()

    def run(self, tokens, steps):
        c = self.cfg
        for _ in range(steps):
            at = torch.randint(len(tokens) - c.ctx - 1, (c.batch,), generator=self.gen)
            x = tokens[at[:, None] + torch.arange(c.ctx)]
            y = tokens[at + c.ctx]
            loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.done += 1
            v = loss.item()
            self.ema_loss = v if self.ema_loss is None else 0.95 * self.ema_loss + 0.05 * v
            if self.rank == 0 and self.done % 25 == 0:
                print(f"[{self.done:4d}] ema {self.ema_loss:.3f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    for k, v in dict(vocab=48, ctx=8, dim=48, batch=96, seed=17, sessions=4, steps=50).items():
        p.add_argument("--" + k, type=int, default=v)
    p.add_argument("--lr", type=float, default=2e-3)
    cfg = p.parse_args()
    dist.init_process_group("gloo")
    box = [tempfile.mkdtemp(prefix="charnet-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    tokens = corpus(dist.get_rank(), vocab=cfg.vocab)
    for _ in range(cfg.sessions):
        s = Session(cfg, box[0])
        s.resume()
        s.run(tokens, cfg.steps)
        s.suspend()
    if dist.get_rank() == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
