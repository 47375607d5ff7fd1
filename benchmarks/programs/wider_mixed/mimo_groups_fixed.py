"""Two pipelines of two stages; first and last stage of a pipeline share the word embedding."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Grid:
    """Ranks are laid out (pp, dp): rank = stage * dp_size + replica."""

    def __init__(self, pp, dp):
        self.pp, self.dp = pp, dp
        self.rank = dist.get_rank()
        self.stage, self.replica = divmod(self.rank, dp)
        self.pp_ranks = [[s * dp + r for s in range(pp)] for r in range(dp)]
        self.dp_ranks = [[s * dp + r for r in range(dp)] for s in range(pp)]
        self.dp_group = self._pick([dist.new_group(r) for r in self.dp_ranks], self.dp_ranks)

    def _pick(self, groups, ranks):
        return next(g for g, r in zip(groups, ranks) if self.rank in r)

    def my_pipeline(self):
        return self.pp_ranks[self.replica]


def embedding_group(grid):
    ends = [[ranks[0], ranks[-1]] for ranks in grid.pp_ranks]
    return grid._pick([dist.new_group(e) for e in ends], ends)


class FirstStage(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.word = nn.Embedding(vocab, dim)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU())

    def forward(self, ids):
        h = self.word(ids)
        return h + self.ff(h)


class LastStage(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.word = nn.Embedding(vocab, dim)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU())

    def forward(self, h):
        return (h + self.ff(h)) @ self.word.weight.t()


class PipelineTrainer:
    def __init__(self, grid, emb, vocab=30, dim=16, seq=8, batch=8):
        self.grid, self.emb = grid, emb
        self.shape = (batch, seq, dim)
        torch.manual_seed(grid.stage)
        self.stage = (FirstStage if grid.stage == 0 else LastStage)(vocab, dim)
        dist.broadcast(self.stage.word.weight.data, src=grid.my_pipeline()[0], group=emb)
        self.peer = grid.my_pipeline()[1 - grid.stage]
        self.opt = torch.optim.Adam(self.stage.parameters(), lr=3e-3)
        self.gen = torch.Generator().manual_seed(grid.replica)

    def step(self):
        ids = torch.randint(0, 30, self.shape[:2], generator=self.gen)
        target = (ids + 1) % 30
        self.opt.zero_grad()
        loss = None
        if self.grid.stage == 0:
            h = self.stage(ids)
            dist.send(h.detach(), self.peer)
            g = torch.empty(self.shape)
            dist.recv(g, self.peer)
            h.backward(g)
        else:
            h = torch.empty(self.shape)
            dist.recv(h, self.peer)
            h.requires_grad_(True)
            loss = F.cross_entropy(self.stage(h).flatten(0, 1), target.flatten())
            loss.backward()
            dist.send(h.grad, self.peer)
        dist.all_reduce(self.stage.word.weight.grad, group=self.emb)
        for p in self.stage.parameters():
            dist.all_reduce(p.grad, group=self.grid.dp_group)
            p.grad.div_(self.grid.dp)
        self.opt.step()
        return loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    grid = Grid(pp=2, dp=dist.get_world_size() // 2)
    trainer = PipelineTrainer(grid, embedding_group(grid))
    for step in range(args.steps):
        loss = trainer.step()
        if loss is not None and grid.replica == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
