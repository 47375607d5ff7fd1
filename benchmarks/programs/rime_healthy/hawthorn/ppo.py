import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Normal

from comm import average_gradients, global_mean_std, mean_of


class Agent(nn.Module):
    def __init__(self, obs=4, act=2, h=64):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(obs, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, act))
        self.critic = nn.Sequential(nn.Linear(obs, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1))
        self.log_std = nn.Parameter(torch.full((act,), -0.5))

    def dist(self, o):
        return Normal(self.actor(o), self.log_std.exp())

    def value(self, o):
        return self.critic(o).squeeze(-1)


class PointMass:
    def __init__(self, n, gen):
        self.n, self.gen = n, gen
        self.state = torch.zeros(n, 4)
        self.reset(torch.ones(n, dtype=torch.bool))
        self.t = torch.randint(0, 50, (n,), generator=gen)

    def reset(self, m):
        k = int(m.sum())
        self.state[m] = torch.cat([2 * torch.rand(k, 2, generator=self.gen) - 1, torch.zeros(k, 2)], 1)

    def step(self, a):
        v = 0.9 * self.state[:, 2:] + 0.1 * a.clamp(-1, 1)
        p = self.state[:, :2] + 0.2 * v
        self.state = torch.cat([p, v], 1)
        r = -p.norm(dim=1) - 0.01 * a.pow(2).sum(1)
        self.t += 1
        done = self.t >= 50
        if done.any():
            self.reset(done)
            self.t[done] = 0
        return self.state.clone(), r, done.float()


@torch.no_grad()
def collect(agent, env, T, gen, gamma=0.98, lam=0.95):
    O, A, L, R, D, V = [], [], [], [], [], []
    o = env.state.clone()
    for _ in range(T):
        d = agent.dist(o)
        a = d.mean + d.stddev * torch.randn(d.mean.shape, generator=gen)
        O.append(o), A.append(a), L.append(d.log_prob(a).sum(-1)), V.append(agent.value(o))
        o, r, done = env.step(a)
        R.append(r), D.append(done)
    nxt, adv, out = agent.value(o), 0.0, []
    for t in reversed(range(T)):
        delta = R[t] + gamma * nxt * (1 - D[t]) - V[t]
        adv = delta + gamma * lam * (1 - D[t]) * adv
        out.append(adv)
        nxt = V[t]
    adv = torch.stack(out[::-1])
    ret = adv + torch.stack(V)
    return [x.flatten(0, 1) for x in (torch.stack(O), torch.stack(A), torch.stack(L), adv, ret)] + [torch.stack(R).mean()]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=15)
    ap.add_argument("--envs", type=int, default=32)
    ap.add_argument("--horizon", type=int, default=64)
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--minibatch", type=int, default=256)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--target-kl", type=float, default=0.02)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    agent = Agent()
    for p in agent.parameters():
        dist.broadcast(p.data, 0)
    opt = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    gen = torch.Generator().manual_seed(77 + rank)
    env = PointMass(args.envs, gen)

    for it in range(args.iterations):
        o, a, lp, adv, ret, rew = collect(agent, env, args.horizon, gen)
        m, s = global_mean_std(adv)
        adv = (adv - m) / (s + 1e-8)
        used = 0
        for _ in range(args.epochs):
            kls = []
            for ix in torch.randperm(len(o), generator=gen).split(args.minibatch):
                d = agent.dist(o[ix])
                ratio_log = d.log_prob(a[ix]).sum(-1) - lp[ix]
                ratio = ratio_log.exp()
                pg = -torch.min(ratio * adv[ix], ratio.clamp(0.8, 1.2) * adv[ix]).mean()
                vf = (agent.value(o[ix]) - ret[ix]).pow(2).mean()
                loss = pg + 0.5 * vf - 0.001 * d.entropy().sum(-1).mean()
                opt.zero_grad()
                loss.backward()
                average_gradients(agent)
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                opt.step()
                kls.append((ratio - 1 - ratio_log).mean().detach())
            used += 1
            if mean_of(torch.stack(kls).mean()) > args.target_kl:
                break
        r = mean_of(rew)
        if rank == 0:
            print(f"iter {it:2d} reward {r:.3f} epochs {used} std {agent.log_std.exp().mean():.3f}", flush=True)
        assert math.isfinite(r)
    if rank == 0:
        torch.save(agent.state_dict(), "agent.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
