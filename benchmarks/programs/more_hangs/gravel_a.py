"""Routed layer with one expert per rank and global norm clipping."""
import argparse

import torch
import torch.distributed as dist
from torch import nn


class Routed(nn.Module):
    def __init__(self, dim, rank, world):
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(dim, world, bias=False)
        self.head = nn.Linear(dim, 1)
        torch.manual_seed(100 + rank)
        self.expert = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.rank = rank

    def dense(self):
        return [*self.gate.parameters(), *self.head.parameters()]

    def forward(self, tokens):
        score = self.gate(tokens).softmax(-1)
        weight, owner = score.max(-1)
        mine = owner == self.rank
        out = self.head(tokens * weight.unsqueeze(-1))
        if mine.any():
            moved = self.expert(tokens[mine]) * weight[mine].unsqueeze(-1)
            out = torch.cat([out[~mine], self.head(tokens[mine] + moved)])
        return out


class NormClipper:
    def __init__(self, limit, expert_group):
        self.limit = limit
        self.expert_group = expert_group

    @staticmethod
    def _square(grads):
        return sum((g.pow(2).sum() for g in grads), torch.zeros(())).reshape(1)

    def _experts(self, params):
        grads = [p.grad for p in params if p.grad is not None]
        if not grads:
            return torch.zeros(1)
        square = self._square(grads)
        dist.all_reduce(square, group=self.expert_group)
        return square

    def apply(self, dense, experts):
        total = self._square([p.grad for p in dense]) + self._experts(experts)
        norm = total.sqrt()
        factor = (self.limit / (norm + 1e-6)).clamp(max=1.0)
        for p in [*dense, *experts]:
            if p.grad is not None:
                p.grad.mul_(factor)
        return norm.item()


def token_batch(step, dim, count, favour):
    g = torch.Generator().manual_seed(step)
    tokens = torch.randn(count, dim, generator=g)
    return tokens + favour if step % 5 == 4 else tokens


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.net = Routed(args.dim, self.rank, self.world)
        self.clip = NormClipper(args.clip, dist.new_group())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.favour = -4.0 * self.net.gate.weight[1].detach().clone() / self.net.gate.weight[1].norm().item()

    def step(self, s):
        tokens = token_batch(s, self.args.dim, self.args.tokens, self.favour)
        loss = (self.net(tokens) - 1.0).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        for p in self.net.dense():
            dist.all_reduce(p.grad)
            p.grad /= self.world
        norm = self.clip.apply(self.net.dense(), list(self.net.expert.parameters()))
        self.opt.step()
        return loss.item(), norm


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--dim", type=int, default=12)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--clip", type=float, default=0.5)
    args = p.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    for s in range(args.steps):
        loss, norm = trainer.step(s)
        if trainer.rank == 0:
            print(f"step {s} loss {loss:.3f} norm {norm:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
