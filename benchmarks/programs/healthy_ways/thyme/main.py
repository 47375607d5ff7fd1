"""PPO where each rank owns its own environments; the policy is a DDP model."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from cartpole import CartPoles


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=14)
    p.add_argument("--n-envs", type=int, default=12)
    p.add_argument("--horizon", type=int, default=64)
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--minibatch", type=int, default=192)
    p.add_argument("--gamma", type=float, default=0.99)
    p.add_argument("--lam", type=float, default=0.95)
    p.add_argument("--clip", type=float, default=0.2)
    p.add_argument("--target-kl", type=float, default=0.02)
    p.add_argument("--lr", type=float, default=2.5e-3)
    p.add_argument("--seed", type=int, default=5)
    return p.parse_args()


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.v = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.orthogonal_(m.weight, 1.4)
                nn.init.zeros_(m.bias)
        nn.init.orthogonal_(self.pi[-1].weight, 0.01)

    def forward(self, obs, action=None, generator=None):
        logp_all = self.pi(obs).log_softmax(-1)
        if action is None:
            action = torch.multinomial(logp_all.exp(), 1, generator=generator).squeeze(1)
        logp = logp_all.gather(1, action[:, None]).squeeze(1)
        ent = -(logp_all.exp() * logp_all).sum(-1)
        return action, logp, ent, self.v(obs).squeeze(-1)


class PPO:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.agent = DDP(Agent())
        self.opt = torch.optim.Adam(self.agent.parameters(), lr=args.lr, eps=1e-5)
        self.gen = torch.Generator().manual_seed(args.seed + 7919 * (self.rank + 1))
        self.envs = CartPoles(args.n_envs, self.gen)
        self.obs = self.envs.state.clone()

    @torch.no_grad()
    def rollout(self):
        a, net = self.args, self.agent.module
        rows = []
        for _ in range(a.horizon):
            act, logp, _, val = net(self.obs, generator=self.gen)
            nxt, rew, fell, timeout, final = self.envs.step(act)
            rew = rew + a.gamma * net(final, act)[3] * timeout.float()
            rows.append((self.obs, act, logp, val, rew, (fell | timeout).float()))
            self.obs = nxt
        obs, act, logp, val, rew, done = (torch.stack(z) for z in zip(*rows))
        last = net(self.obs, generator=self.gen)[3]
        adv, acc = torch.zeros_like(rew), torch.zeros(a.n_envs)
        for t in reversed(range(a.horizon)):
            nv = last if t == a.horizon - 1 else val[t + 1]
            delta = rew[t] + a.gamma * nv * (1 - done[t]) - val[t]
            acc = delta + a.gamma * a.lam * (1 - done[t]) * acc
            adv[t] = acc
        ret = adv + val
        return [z.flatten(0, 1) for z in (obs, act, logp, adv, ret)]

    def normalise(self, adv):
        s = torch.stack([adv.sum(), adv.pow(2).sum(), torch.tensor(float(adv.numel()))]).double()
        dist.all_reduce(s)
        mean = s[0] / s[2]
        std = (s[1] / s[2] - mean ** 2).clamp(min=0).sqrt()
        return ((adv - mean) / (std + 1e-8)).float()

    def everyone_near(self, obs, act, logp):
        with torch.no_grad():
            new = self.agent.module(obs, act)[1]
            ratio = new - logp
            kl = (ratio.exp() - 1 - ratio).mean()
        dist.all_reduce(kl)
        return (kl / self.world).item() <= self.args.target_kl

    def update(self, batch):
        a = self.args
        obs, act, logp, adv, ret = batch
        adv = self.normalise(adv)
        n = len(obs)
        used = 0
        for _ in range(a.epochs):
            perm = torch.randperm(n, generator=self.gen)
            for idx in perm.split(a.minibatch):
                _, new, ent, val = self.agent(obs[idx], act[idx])
                ratio = (new - logp[idx]).exp()
                surr = torch.min(ratio * adv[idx], ratio.clamp(1 - a.clip, 1 + a.clip) * adv[idx])
                loss = -surr.mean() + 0.5 * 0.1 * (val - ret[idx]).pow(2).mean() - 0.005 * ent.mean()
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
                self.opt.step()
            used += 1
            if not self.everyone_near(obs, act, logp):
                break
        return loss.detach(), used

    def episode_length(self):
        got, self.envs.lengths = self.envs.lengths, []
        s = torch.tensor([sum(got), float(len(got))])
        dist.all_reduce(s)
        return (s[0] / s[1].clamp(min=1)).item(), int(s[1])

    def train(self):
        for u in range(self.args.updates):
            t0 = time.perf_counter()
            for g in self.opt.param_groups:
                g["lr"] = self.args.lr * (1 - 0.8 * u / self.args.updates)
            batch = self.rollout()
            t1 = time.perf_counter()
            loss, used = self.update(batch)
            length, episodes = self.episode_length()
            if self.rank == 0:
                print(f"update {u:2d} loss {loss.item():8.4f} length {length:6.1f} over {episodes} "
                      f"epochs {used} play {t1 - t0:.2f}s learn {time.perf_counter() - t1:.2f}s", flush=True)


def main():
    args = parse()
    dist.init_process_group("gloo")
    PPO(args).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
