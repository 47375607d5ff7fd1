"""Policy gradient on a batch of grid corridors; the learner is sharded, actors run the plain module."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from actor import Actor


class Corridors:
    """Walk to the flagged end; the flag is shown in a corner of the observation."""

    def __init__(self, n, width, gen):
        self.n, self.width, self.gen = n, width, gen

    def reset(self):
        self.pos = torch.full((self.n,), self.width // 2)
        self.flag = torch.randint(0, 2, (self.n,), generator=self.gen)
        return self.look()

    def look(self):
        obs = torch.zeros(self.n, self.width + 2)
        obs[torch.arange(self.n), self.pos] = 1
        obs[torch.arange(self.n), self.width + self.flag] = 1
        return obs

    def step(self, action):
        slip = torch.rand(self.n, generator=self.gen) < 0.1
        move = torch.where(slip, 1 - action, action) * 2 - 1
        self.pos = (self.pos + move).clamp(0, self.width - 1)
        goal = torch.where(self.flag == 1, self.width - 1, 0)
        return self.look(), (self.pos == goal).float() - 0.05


class Policy(nn.Module):
    def __init__(self, obs, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi = nn.Linear(width, 2)
        self.value = nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.value(h).squeeze(-1)


def returns(rewards, discount=0.95):
    out, run = [], torch.zeros_like(rewards[0])
    for r in reversed(rewards):
        run = r + discount * run
        out.append(run)
    return torch.stack(out[::-1])


def build(args):
    torch.manual_seed(args.seed)
    policy = Policy(args.width + 2)
    actor = Actor(Policy(args.width + 2), dict(policy.named_parameters()))
    fully_shard(policy.body)
    fully_shard(policy)
    return policy, actor


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=40)
    ap.add_argument("--envs", type=int, default=24)
    ap.add_argument("--horizon", type=int, default=12)
    ap.add_argument("--width", type=int, default=7)
    ap.add_argument("--passes", type=int, default=3)
    ap.add_argument("--seed", type=int, default=15)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    policy, actor = build(args)
    gen = torch.Generator().manual_seed(args.seed + 31 * (rank + 1))
    envs = Corridors(args.envs, args.width, gen)
    opt = torch.optim.Adam(policy.parameters(), lr=5e-3)

    for it in range(1, args.iterations + 1):
        actor.refresh()
        obs, acts, old, rews = actor.rollout(envs, args.horizon, gen)
        ret = returns(rews)
        stat = torch.tensor([ret.sum(), ret.pow(2).sum(), float(ret.numel())])
        dist.all_reduce(stat)
        mean = stat[0] / stat[2]
        std = (stat[1] / stat[2] - mean ** 2).clamp_min(1e-8).sqrt()
        goal = (ret - mean) / std
        for _ in range(args.passes):
            logits, value = policy(obs)
            logp = logits.log_softmax(-1).gather(-1, acts.unsqueeze(-1)).squeeze(-1)
            ratio = (logp - old).exp()
            adv = (goal - value).detach()
            surrogate = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            loss = -surrogate + 0.5 * (value - goal).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if it % 8 == 0:
            r = torch.stack([rews.sum(0).mean(), loss.detach()])
            dist.all_reduce(r)
            if rank == 0:
                print(f"iter {it} return {r[0] / world:.3f} loss {r[1] / world:.4f}", flush=True)

    final = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in policy.state_dict().items()}
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(final, args.out / "policy.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
