"""TD3 with an exploration ladder: every process explores with another noise level and fills its own ring."""
import argparse
import copy
import json

import torch
import torch.distributed as dist
from torch import nn

from rig import Hill, Ring


def mlp(i, o, h=48):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class Learner:
    def __init__(self, lr, tau):
        self.pi, self.q = mlp(4, 2), nn.ModuleList([mlp(6, 1), mlp(6, 1)])
        for p in [*self.pi.parameters(), *self.q.parameters()]:
            dist.broadcast(p.data, 0)
        self.slow_pi, self.slow_q = copy.deepcopy(self.pi), copy.deepcopy(self.q)
        for p in [*self.slow_pi.parameters(), *self.slow_q.parameters()]:
            p.requires_grad_(False)
        self.opt_pi = torch.optim.Adam(self.pi.parameters(), lr)
        self.opt_q = torch.optim.Adam(self.q.parameters(), lr)
        self.tau = tau

    @staticmethod
    def mean_grads(params):
        params = list(params)
        flat = torch.cat([p.grad.reshape(-1) for p in params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.grad.copy_(g.view_as(p))

    def act(self, obs):
        return torch.tanh(self.pi(obs))

    def update(self, batch, gen, move_policy):
        s, a, r, s2 = batch.split([4, 2, 1, 4], 1)
        with torch.no_grad():
            jitter = (0.1 * torch.randn(a.shape, generator=gen)).clamp(-0.2, 0.2)
            a2 = (torch.tanh(self.slow_pi(s2)) + jitter).clamp(-1, 1)
            low = torch.min(*(q(torch.cat([s2, a2], 1)) for q in self.slow_q))
            goal = r + 0.9 * low
        x = torch.cat([s, a], 1)
        loss = sum(nn.functional.mse_loss(q(x), goal) for q in self.q)
        self.opt_q.zero_grad()
        loss.backward()
        self.mean_grads(self.q.parameters())
        self.opt_q.step()
        if move_policy:
            gain = self.q[0](torch.cat([s, self.act(s)], 1)).mean()
            self.opt_pi.zero_grad()
            (-gain).backward()
            self.mean_grads(self.pi.parameters())
            self.opt_pi.step()
            with torch.no_grad():
                for slow, fast in ((self.slow_pi, self.pi), (self.slow_q, self.q)):
                    for u, v in zip(slow.parameters(), fast.parameters()):
                        u.lerp_(v, self.tau)
        return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=380)
    ap.add_argument("--envs", type=int, default=16)
    ap.add_argument("--ring", type=int, default=3000)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--seed", type=int, default=4)
    ap.add_argument("--history", default="td3_history.json")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    learner = Learner(lr=3e-3, tau=0.03)
    gen = torch.Generator().manual_seed(args.seed * 31 + rank + 1)
    sigma = 0.4 ** (1 + rank / max(1, world - 1))
    hill, ring = Hill(args.envs, gen), Ring(args.ring, 4, 2)
    rewards, losses = [], []

    for k in range(args.updates + 20):
        obs = hill.obs()
        with torch.no_grad():
            a = (learner.act(obs) + sigma * torch.randn(args.envs, 2, generator=gen)).clamp(-1, 1)
        r, nxt = hill.step(a)
        ring.push(torch.cat([obs, a, r[:, None], nxt], 1))
        rewards.append(r.mean().item())
        if k >= 20:
            losses.append(learner.update(ring.sample(args.batch, gen), gen, move_policy=k % 2 == 0))
        if k % 40 == 39:
            s = torch.tensor([sum(rewards[-40:]) / 40, losses[-1]], dtype=torch.float64)
            dist.all_reduce(s)
            s /= world
            if rank == 0:
                print(f"{k + 1:4d} reward {s[0]:.3f} td {s[1]:.4f} ring {len(ring)}", flush=True)

    ladder = [None] * world
    dist.all_gather_object(ladder, {"rank": rank, "sigma": sigma, "rewards": rewards})
    if rank == 0:
        with open(args.history, "w") as f:
            json.dump(ladder, f)
        torch.save({"pi": learner.pi.state_dict(), "q": learner.q.state_dict()}, "td3.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
