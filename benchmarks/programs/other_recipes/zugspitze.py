"""Actor-learner policy gradient: rank 0 learns, the other ranks only play."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.utils import parameters_to_vector, vector_to_parameters

log = logging.getLogger("actorlearner")
GO, STOP = 1.0, 0.0


@dataclass
class Config:
    iterations: int = 12
    envs: int = 8
    horizon: int = 24
    gamma: float = 0.97
    lr: float = 0.02
    entropy: float = 0.01
    target_return: float = 21.0
    seed: int = 6


class BalanceEnv:
    """`envs` copies of a point that must be kept near zero by pushes to the left or the right."""

    def __init__(self, envs, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.pos, self.vel = torch.zeros(envs), torch.zeros(envs)
        self.reset(torch.ones(envs, dtype=torch.bool))

    def reset(self, which):
        n = len(self.pos)
        self.pos = torch.where(which, torch.rand(n, generator=self.gen) * 0.6 - 0.3, self.pos)
        self.vel = torch.where(which, torch.zeros(n), self.vel)

    def observe(self):
        return torch.stack([self.pos, self.vel], 1)

    def step(self, action):
        self.vel = 0.95 * self.vel + 0.12 * self.pos + 0.1 * (action.float() * 2 - 1)
        self.pos = self.pos + self.vel
        done = self.pos.abs() > 1
        self.reset(done)
        return torch.where(done, -1.0, 1.0 - self.pos.abs()), done.float()


class Policy(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.Tanh())
        self.pi, self.v = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Link:
    """What goes over the wire: weights and a flag outwards, fixed-size rollouts back."""

    def __init__(self, policy, cfg):
        self.size = sum(p.numel() for p in policy.parameters())
        self.cfg, self.world = cfg, dist.get_world_size()
        self.shape = (cfg.horizon, cfg.envs, 5)

    def publish(self, policy=None, flag=GO):
        msg = torch.zeros(self.size + 1)
        if policy is not None:
            msg[:-1] = parameters_to_vector(policy.parameters()).detach()
            msg[-1] = flag
        dist.broadcast(msg, 0)
        return msg[:-1], msg[-1].item()

    def collect(self):
        slots = [torch.empty(self.shape) for _ in range(self.world)]
        dist.gather(torch.zeros(self.shape), slots, dst=0)
        return torch.cat(slots[1:], dim=1)

    def deliver(self, rollout):
        dist.gather(rollout, dst=0)


class Actor:
    def __init__(self, cfg, rank):
        self.cfg = cfg
        self.policy = Policy()
        self.link = Link(self.policy, cfg)
        self.env = BalanceEnv(cfg.envs, cfg.seed * 100 + rank)
        torch.manual_seed(cfg.seed * 100 + rank)

    @torch.no_grad()
    def rollout(self):
        rows = []
        for _ in range(self.cfg.horizon):
            obs = self.env.observe()
            action = self.policy(obs)[0].sample()
            reward, done = self.env.step(action)
            rows.append(torch.cat([obs, action[:, None].float(), reward[:, None], done[:, None]], 1))
        return torch.stack(rows)

    def run(self):
        while True:
            weights, flag = self.link.publish()
            if flag == STOP:
                break
            vector_to_parameters(weights, self.policy.parameters())
            self.link.deliver(self.rollout())


class Learner:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.policy = Policy()
        self.link = Link(self.policy, cfg)
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=cfg.lr)

    def returns(self, reward, done):
        out, acc = torch.empty_like(reward), torch.zeros(reward.size(1))
        for t in reversed(range(reward.size(0))):
            acc = reward[t] + self.cfg.gamma * acc * (1 - done[t])
            out[t] = acc
        return out

    def update(self, batch):
        obs, action, reward, done = batch[..., :2], batch[..., 2], batch[..., 3], batch[..., 4]
        ret = self.returns(reward, done)
        for _ in range(3):
            dist_, value = self.policy(obs)
            adv = ret - value.detach()
            adv = (adv - adv.mean()) / (adv.std() + 1e-6)
            loss = -(dist_.log_prob(action) * adv).mean() + 0.5 * (ret - value).pow(2).mean()
            loss = loss - self.cfg.entropy * dist_.entropy().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return reward.sum(0).mean().item(), loss.item()

    def run(self):
        for it in range(self.cfg.iterations):
            self.link.publish(self.policy)
            score, loss = self.update(self.link.collect())
            log.info("iteration %d reward per rollout %.2f loss %.3f", it, score, loss)
            if score >= self.cfg.target_return:
                break
        self.link.publish(self.policy, STOP)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=Config.iterations)
    a = p.parse_args()
    cfg = Config(iterations=a.iterations)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (Learner(cfg) if rank == 0 else Actor(cfg, rank)).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
