"""Actors and one learner: ranks above zero play, rank zero learns (V-trace)."""
import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from envs import GridWorlds

log = logging.getLogger("impala")
LEARNER = 0


@dataclass
class Config:
    iterations: int = 60
    horizon: int = 20
    n_envs: int = 32
    passes: int = 2
    gamma: float = 0.97
    lr: float = 3e-3
    entropy: float = 0.01
    value_coef: float = 0.5
    max_norm: float = 1.0
    seed: int = 11
    out: str = "runs/saffron"


class ActorCritic(nn.Module):
    def __init__(self, obs=6, actions=4, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi = nn.Linear(width, actions)
        self.v = nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


@dataclass
class Rollout:
    obs: torch.Tensor      # T+1, B, D
    action: torch.Tensor   # T, B
    logp: torch.Tensor     # T, B
    reward: torch.Tensor   # T, B
    done: torch.Tensor     # T, B

    @classmethod
    def empty(cls, cfg, dim=6):
        t, b = cfg.horizon, cfg.n_envs
        return cls(torch.empty(t + 1, b, dim), torch.empty(t, b, dtype=torch.long),
                   torch.empty(t, b), torch.empty(t, b), torch.empty(t, b))

    def tensors(self):
        return [self.obs, self.action, self.logp, self.reward, self.done]

    @staticmethod
    def stack(parts):
        return Rollout(*[torch.cat(z, dim=1) for z in zip(*[p.tensors() for p in parts])])


def vtrace(values, last, reward, done, ratio, gamma):
    rho, c = ratio.clamp(max=1.0), ratio.clamp(max=1.0)
    cont = gamma * (1 - done)
    nxt = torch.cat([values[1:], last[None]])
    delta = rho * (reward + cont * nxt - values)
    acc = torch.zeros_like(last)
    out = torch.zeros_like(values)
    for t in reversed(range(len(values))):
        acc = delta[t] + cont[t] * c[t] * acc
        out[t] = acc
    vs = values + out
    vs_next = torch.cat([vs[1:], last[None]])
    adv = rho * (reward + cont * vs_next - values)
    return vs, adv


class Learner:
    def __init__(self, cfg, world):
        self.cfg, self.world = cfg, world
        self.net = ActorCritic()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=cfg.lr)
        self.buffers = {a: Rollout.empty(cfg) for a in range(1, world)}

    def publish(self, stop):
        dist.broadcast(torch.tensor([1 if stop else 0]), src=LEARNER)
        if not stop:
            dist.broadcast(parameters_to_vector(self.net.parameters()).detach(), src=LEARNER)

    def collect(self):
        for actor, buf in self.buffers.items():
            for tensor in buf.tensors():
                dist.recv(tensor, src=actor)
        return Rollout.stack(list(self.buffers.values()))

    def update(self, roll):
        cfg = self.cfg
        for _ in range(cfg.passes):
            logits, values = self.net(roll.obs)
            dist_now = torch.distributions.Categorical(logits=logits[:-1])
            logp = dist_now.log_prob(roll.action)
            with torch.no_grad():
                ratio = (logp - roll.logp).exp()
                vs, adv = vtrace(values[:-1], values[-1], roll.reward, roll.done, ratio, cfg.gamma)
            loss_pi = -(adv * logp).mean()
            loss_v = F.mse_loss(values[:-1], vs)
            loss = loss_pi + cfg.value_coef * loss_v - cfg.entropy * dist_now.entropy().mean()
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), cfg.max_norm)
            self.opt.step()
        return loss.item(), loss_v.item()

    def run(self):
        for it in range(self.cfg.iterations):
            self.publish(stop=False)
            roll = self.collect()
            loss, loss_v = self.update(roll)
            if it % 10 == 0 or it == self.cfg.iterations - 1:
                log.info("iter %d loss %.4f value %.4f reward/step %.4f", it, loss, loss_v, roll.reward.mean())
        self.publish(stop=True)
        os.makedirs(self.cfg.out, exist_ok=True)
        torch.save(self.net.state_dict(), os.path.join(self.cfg.out, "policy.pt"))


class Actor:
    def __init__(self, cfg, rank):
        self.cfg = cfg
        self.net = ActorCritic().requires_grad_(False).eval()
        self.envs = GridWorlds(cfg.n_envs, seed=cfg.seed * 1000 + rank)
        self.gen = torch.Generator().manual_seed(cfg.seed * 2000 + rank)
        self.obs = self.envs.observe()
        self.flat = parameters_to_vector(self.net.parameters())

    def subscribe(self):
        flag = torch.zeros(1, dtype=torch.long)
        dist.broadcast(flag, src=LEARNER)
        if flag.item():
            return False
        dist.broadcast(self.flat, src=LEARNER)
        vector_to_parameters(self.flat, self.net.parameters())
        return True

    @torch.no_grad()
    def play(self):
        roll = Rollout.empty(self.cfg)
        for t in range(self.cfg.horizon):
            logits, _ = self.net(self.obs)
            probs = logits.softmax(-1)
            action = torch.multinomial(probs, 1, generator=self.gen).squeeze(1)
            roll.obs[t], roll.action[t] = self.obs, action
            roll.logp[t] = probs.gather(1, action[:, None]).squeeze(1).log()
            self.obs, roll.reward[t], done = self.envs.step(action)
            roll.done[t] = done.float()
        roll.obs[-1] = self.obs
        return roll

    def run(self):
        while self.subscribe():
            for tensor in self.play().tensors():
                dist.send(tensor, dst=LEARNER)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=Config.iterations)
    p.add_argument("--seed", type=int, default=Config.seed)
    a = p.parse_args()
    cfg = Config(iterations=a.iterations, seed=a.seed)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == LEARNER else logging.WARNING,
                        format="%(asctime)s %(name)s %(message)s")
    torch.manual_seed(cfg.seed)
    (Learner(cfg, world) if rank == LEARNER else Actor(cfg, rank)).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
