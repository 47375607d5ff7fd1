"""Clipped policy optimisation on a batch of small key-collecting grids, data parallel over ranks."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

SIZE, HORIZON = 6, 14
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Grid:
    def __init__(self, n, gen):
        self.n, self.gen = n, gen

    def reset(self):
        self.pos = torch.randint(0, SIZE, (self.n, 2), generator=self.gen)
        self.key = torch.randint(0, SIZE, (self.n, 2), generator=self.gen)
        return self.obs()

    def obs(self):
        p = F.one_hot(self.pos, SIZE).flatten(1)
        k = F.one_hot(self.key, SIZE).flatten(1)
        return torch.cat([p, k], 1).float()

    def step(self, action):
        before = (self.pos - self.key).abs().sum(1)
        self.pos = (self.pos + MOVES[action]).clamp(0, SIZE - 1)
        after = (self.pos - self.key).abs().sum(1)
        got = after == 0
        reward = got.float() * 2 + 0.1 * (before - after).float() - 0.05
        fresh = torch.randint(0, SIZE, (self.n, 2), generator=self.gen)
        self.key = torch.where(got[:, None], fresh, self.key)
        return self.obs(), reward


class ActorCritic(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4 * SIZE, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, 4)
        self.v = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.pi(h), self.v(h).squeeze(-1)


@torch.no_grad()
def rollout(policy, env, gen, gamma=0.95, lam=0.9):
    obs, data = env.reset(), {k: [] for k in ("obs", "act", "logp", "val", "rew")}
    for _ in range(HORIZON):
        logits, val = policy(obs)
        act = torch.multinomial(logits.softmax(-1), 1, generator=gen).squeeze(1)
        logp = logits.log_softmax(-1).gather(1, act[:, None]).squeeze(1)
        nxt, rew = env.step(act)
        for k, v in zip(data, (obs, act, logp, val, rew)):
            data[k].append(v)
        obs = nxt
    last = policy(obs)[1]
    adv, gae = [], torch.zeros_like(last)
    for t in reversed(range(HORIZON)):
        delta = data["rew"][t] + gamma * last - data["val"][t]
        gae = delta + gamma * lam * gae
        adv.insert(0, gae)
        last = data["val"][t]
    out = {k: torch.cat(v) for k, v in data.items()}
    out["adv"] = torch.cat(adv)
    out["ret"] = out["adv"] + out["val"]
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=70)
    ap.add_argument("--envs", type=int, default=64)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--clip", type=float, default=0.2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(ActorCritic())
    policy = model.module if isinstance(model, DistributedDataParallel) else model
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(40 + rank)
    env = Grid(args.envs, gen)
    for update in range(args.updates):
        batch = rollout(policy, env, gen)
        adv = batch["adv"]
        stats = torch.stack([adv.sum(), adv.pow(2).sum(), torch.tensor(float(adv.numel()))])
        dist.all_reduce(stats)
        mean = stats[0] / stats[2]
        adv = (adv - mean) / (stats[1] / stats[2] - mean ** 2).sqrt().clamp_min(1e-6)
        for _ in range(args.epochs):
            for idx in torch.randperm(adv.numel(), generator=gen).chunk(4):
                logits, value = model(batch["obs"][idx])
                logp_all = logits.log_softmax(-1)
                logp = logp_all.gather(1, batch["act"][idx, None]).squeeze(1)
                ratio = (logp - batch["logp"][idx]).exp()
                a = adv[idx]
                pg = -torch.min(ratio * a, ratio.clamp(1 - args.clip, 1 + args.clip) * a).mean()
                entropy = -(logp_all.exp() * logp_all).sum(-1).mean()
                loss = pg + 0.5 * F.mse_loss(value, batch["ret"][idx]) - 0.005 * entropy
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                opt.step()
        score = batch["rew"].sum() / args.envs
        dist.all_reduce(score)
        if rank == 0 and update % 10 == 0:
            print(f"update {update} return {score.item() / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
