import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

from ppo_multi import Agent, average_gradients, gae


@dataclass
class Args:
    seed: int = 3
    updates: int = 10
    horizon: int = 16
    num_envs: int = 16
    epochs: int = 2
    lr: float = 2.5e-3
    clip: float = 0.2


class Bandits:
    """A contextual bandit with a little memory, vectorised."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.w = np.random.RandomState(0).randn(4, 6)
        self.x = rng.randn(n, 6)

    def obs(self):
        return torch.tensor(self.x, dtype=torch.float32)

    def step(self, a):
        best = (self.x @ self.w.T).argmax(1)
        r = (best == a.numpy()).astype(np.float32)
        done = (self.rng.rand(self.n) < 0.1).astype(np.float32)
        self.x = 0.5 * self.x + self.rng.randn(self.n, 6)
        return torch.tensor(r), torch.tensor(done)


def rollout(agent, env, args):
    buf = {k: [] for k in ("obs", "act", "logp", "val", "rew", "done")}
    with torch.no_grad():
        for _ in range(args.horizon):
            o = env.obs()
            a, lp, _, v = agent.get_action_and_value(o)
            r, d = env.step(a)
            for k, t in zip(buf, (o, a, lp, v, r, d)):
                buf[k].append(t)
        last = agent.get_value(env.obs())
    out = {k: torch.stack(v) for k, v in buf.items()}
    out["adv"], out["ret"] = gae(out["rew"], out["val"], out["done"], last)
    return {k: v.flatten(0, 1) for k, v in out.items()}


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    args = Args()
    args.seed += rank
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    env = Bandits(args.num_envs, np.random.RandomState(args.seed))
    agent = Agent(6, 4)
    for param in agent.parameters():
        dist.broadcast(param.data, src=0)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    for update in range(args.updates):
        for g in optimizer.param_groups:
            g["lr"] = args.lr * (1 - update / args.updates)
        b = rollout(agent, env, args)
        adv = (b["adv"] - b["adv"].mean()) / (b["adv"].std() + 1e-8)
        for _ in range(args.epochs):
            _, lp, ent, val = agent.get_action_and_value(b["obs"], b["act"])
            ratio = (lp - b["logp"]).exp()
            pg = torch.max(-adv * ratio, -adv * ratio.clamp(1 - args.clip, 1 + args.clip)).mean()
            loss = pg - 0.01 * ent.mean() + 0.5 * (val - b["ret"]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            average_gradients(agent, world_size)
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
        if rank == 0:
            print(f"update {update} reward {b['rew'].mean():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
