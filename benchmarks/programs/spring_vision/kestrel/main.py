"""Continuous-control PPO on vectorised environments, gradients averaged by hand over the ranks."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Normal

from agent import AdaptiveScheduler, Agent, PointMassVec, gaussian_kl

log = logging.getLogger("ppo")


class PPO:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.agent = Agent(PointMassVec.obs_dim, PointMassVec.act_dim)
        for p in self.agent.parameters():
            dist.broadcast(p.data, src=0)
        torch.manual_seed(args.seed + 1 + self.rank)
        gen = torch.Generator().manual_seed(args.seed + 1 + self.rank)
        self.env = PointMassVec(args.envs, gen)
        self.lr = args.lr
        self.opt = torch.optim.Adam(self.agent.parameters(), self.lr, eps=1e-5)
        self.scheduler = AdaptiveScheduler(args.kl_threshold)
        self.obs = self.env.obs()

    def mean_over_ranks(self, value):
        t = torch.tensor(float(value))
        dist.all_reduce(t)
        return t.item() / self.world

    def rollout(self):
        a = self.args
        keys = ("obs", "act", "logp", "val", "mu", "log_std", "rew", "done")
        buf = {k: [] for k in keys}
        for _ in range(a.steps):
            act, logp, v, mu, log_std = self.agent.act(self.obs)
            nxt, rew, done = self.env.step(act)
            for k, x in zip(keys, (self.obs, act, logp, v, mu, log_std, rew, done)):
                buf[k].append(x)
            self.obs = nxt
        b = {k: torch.stack(v) for k, v in buf.items()}
        with torch.no_grad():
            last = self.agent(self.obs)[2]
        adv, acc = torch.zeros_like(b["rew"]), torch.zeros(a.envs)
        for t in reversed(range(a.steps)):
            nv = last if t == a.steps - 1 else b["val"][t + 1]
            live = 1 - b["done"][t]
            delta = b["rew"][t] + a.gamma * nv * live - b["val"][t]
            acc = delta + a.gamma * a.lam * live * acc
            adv[t] = acc
        b["ret"] = adv + b["val"]
        s = torch.stack([adv.sum(), adv.pow(2).sum(), torch.tensor(float(adv.numel()))])
        dist.all_reduce(s)
        mean = s[0] / s[2]
        std = (s[1] / s[2] - mean ** 2).clamp(min=1e-8).sqrt()
        b["adv"] = (adv - mean) / std
        return {k: v.flatten(0, 1) for k, v in b.items()}

    def average_gradients(self):
        grads = [p.grad for p in self.agent.parameters()]
        flat = torch.cat([g.reshape(-1) for g in grads])
        dist.all_reduce(flat)
        flat /= self.world
        o = 0
        for g in grads:
            g.copy_(flat[o:o + g.numel()].view_as(g))
            o += g.numel()

    def set_lr(self, lr):
        self.lr = lr
        for g in self.opt.param_groups:
            g["lr"] = lr

    def update(self, b):
        a = self.args
        n = b["obs"].size(0)
        kls = []
        for _ in range(a.epochs):
            ep_kls = []
            for idx in torch.randperm(n).split(n // a.minibatches):
                mu, log_std, v = self.agent(b["obs"][idx])
                logp = Normal(mu, log_std.exp()).log_prob(b["act"][idx]).sum(-1)
                ratio = (logp - b["logp"][idx]).exp()
                adv = b["adv"][idx]
                pg = torch.max(-adv * ratio, -adv * ratio.clamp(1 - a.clip, 1 + a.clip)).mean()
                vl = (v - b["ret"][idx]).pow(2).mean()
                loss = pg + 0.5 * vl - a.entropy * log_std.sum(-1).mean()
                self.opt.zero_grad()
                loss.backward()
                self.average_gradients()
                nn.utils.clip_grad_norm_(self.agent.parameters(), 1.0)
                self.opt.step()
                with torch.no_grad():
                    ep_kls.append(gaussian_kl(b["mu"][idx], b["log_std"][idx], mu, log_std))
            kl = torch.stack(ep_kls).mean().item()
            kls.append(kl)
            self.set_lr(self.scheduler.update(self.lr, kl))
        return sum(kls) / len(kls)

    def run(self):
        t0 = time.time()
        for it in range(1, self.args.iterations + 1):
            batch = self.rollout()
            kl = self.update(batch)
            if it % 5 == 0:
                rew, kl = self.mean_over_ranks(batch["rew"].mean()), self.mean_over_ranks(kl)
                if self.rank == 0:
                    log.info("iter %d reward %.3f kl %.4f lr %.2e (%.1fs)", it, rew, kl, self.lr, time.time() - t0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=28)
    ap.add_argument("--envs", type=int, default=64)
    ap.add_argument("--steps", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--minibatches", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--kl-threshold", type=float, default=0.008)
    ap.add_argument("--gamma", type=float, default=0.98)
    ap.add_argument("--lam", type=float, default=0.95)
    ap.add_argument("--clip", type=float, default=0.2)
    ap.add_argument("--entropy", type=float, default=0.002)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    ppo = PPO(args)
    ppo.run()
    if args.out and ppo.rank == 0:
        torch.save(ppo.agent.state_dict(), args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
