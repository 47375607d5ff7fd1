"""Multi-process PPO: every process steps its own environments, gradients are averaged."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist

from agent import ActorCritic, RunningNorm
from env import CartBatch


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=14)
    p.add_argument("--envs", type=int, default=32, help="environments per process")
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--minibatches", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--gamma", type=float, default=0.95)
    p.add_argument("--lam", type=float, default=0.9)
    p.add_argument("--entropy", type=float, default=0.002)
    p.add_argument("--seed", type=int, default=9)
    return p.parse_args()


def average_grads(module, world):
    flat = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in module.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def broadcast_params(module):
    for t in module.state_dict().values():
        dist.broadcast(t, src=0)


class Collector:
    def __init__(self, env, steps, gamma, lam):
        self.env, self.steps, self.gamma, self.lam = env, steps, gamma, lam
        self.obs = torch.from_numpy(env.reset_all())

    @torch.no_grad()
    def collect(self, agent, norm):
        store = {k: [] for k in ("raw", "obs", "act", "logp", "val", "rew", "done")}
        for _ in range(self.steps):
            z = norm(self.obs)
            d = agent.dist(z)
            act = d.sample()
            nxt, rew, done = self.env.step(act.numpy())
            for key, item in zip(store, (self.obs, z, act, d.log_prob(act).sum(-1),
                                         agent.value(z), torch.from_numpy(rew),
                                         torch.full((self.env.n,), float(done)))):
                store[key].append(item)
            self.obs = torch.from_numpy(nxt)
        data = {k: torch.stack(v) for k, v in store.items()}
        last = agent.value(norm(self.obs))
        adv, run = torch.zeros_like(data["rew"]), torch.zeros(self.env.n)
        for t in reversed(range(self.steps)):
            alive = 1 - data["done"][t]
            following = data["val"][t + 1] if t + 1 < self.steps else last
            delta = data["rew"][t] + self.gamma * following * alive - data["val"][t]
            run = delta + self.gamma * self.lam * alive * run
            adv[t] = run
        data["ret"] = adv + data["val"]
        data["adv"] = adv
        return {k: v.flatten(0, 1) for k, v in data.items()}


def main():
    a = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(a.seed + rank)
    env = CartBatch(a.envs, seed=1000 * a.seed + rank, horizon=a.steps,
                    scale=0.6 + 0.8 * rank / max(1, world - 1))
    agent = ActorCritic(env.obs_dim, env.act_dim)
    broadcast_params(agent)
    norm = RunningNorm(env.obs_dim)
    opt = torch.optim.Adam(agent.parameters(), lr=a.lr, eps=1e-5)
    collector = Collector(env, a.steps, a.gamma, a.lam)
    shuffle = np.random.default_rng((a.seed, rank))

    for it in range(a.iterations):
        batch = collector.collect(agent, norm)
        stats = torch.stack([batch["adv"].mean(), batch["adv"].pow(2).mean(), batch["rew"].mean()])
        dist.all_reduce(stats)
        stats /= world
        mean, std = stats[0], (stats[1] - stats[0] ** 2).clamp(min=1e-8).sqrt()
        adv = (batch["adv"] - mean) / std
        n = len(adv)
        for _ in range(a.epochs):
            for idx in np.array_split(shuffle.permutation(n), a.minibatches):
                idx = torch.from_numpy(idx)
                policy, value, entropy = agent.losses(
                    batch["obs"][idx], batch["act"][idx], batch["logp"][idx], adv[idx],
                    batch["ret"][idx])
                loss = policy + 0.25 * value - a.entropy * entropy
                opt.zero_grad()
                loss.backward()
                average_grads(agent, world)
                torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.8)
                opt.step()
        norm.update(batch["raw"])
        if rank == 0:
            print(f"iter {it:2d} reward {stats[2]:.3f} policy {policy:.4f} value {value:.3f} "
                  f"entropy {entropy:.3f}", flush=True)

    if rank == 0:
        path = os.path.join(tempfile.mkdtemp(prefix="ppo_"), "agent.pt")
        torch.save({"agent": agent.state_dict(), "norm": norm.state_dict()}, path)
        print(f"saved {path}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
