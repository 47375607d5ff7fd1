"""PPO, each rank with poles of its own."""
import argparse
import itertools
import logging
import statistics

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel as DDP

from env import Pole

log = logging.getLogger("ppo")


class Agent(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
        self.v = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, obs):
        return self.pi(obs), self.v(obs).squeeze(-1)


@torch.no_grad()
def rollout(agent, env, length, gamma=0.99, lam=0.95):
    obs, act, logp, val, rew, end, ages = [], [], [], [], [], [], []
    state = env.state.clone()
    for _ in range(length):
        logits, v = agent(state)
        d = Categorical(logits=logits)
        a = torch.multinomial(d.probs, 1, generator=env.gen).squeeze(1)
        obs.append(state), act.append(a), logp.append(d.log_prob(a)), val.append(v)
        state, r, done, finished = env.step(a)
        rew.append(r), end.append(done)
        ages += finished
    nxt = agent(state)[1]
    adv, last = [], 0.0
    for t in reversed(range(length)):
        live = 1 - end[t]
        delta = rew[t] + gamma * nxt * live - val[t]
        last = delta + gamma * lam * live * last
        adv.append(last)
        nxt = val[t]
    adv = torch.stack(adv[::-1])
    ret = adv + torch.stack(val)
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    flat = [torch.stack(x).flatten(0, 1) for x in (obs, act, logp)]
    return (*flat, adv.flatten(), ret.flatten()), ages


def minibatches(data, size, passes):
    for _ in range(passes):
        for i in torch.randperm(len(data[0])).split(size):
            yield [t[i] for t in data]


def drift(old, new):
    ratio = (new - old).exp()
    return (ratio - 1 - (new - old)).mean().item()


class Trust:
    """Says whether the policy is still near the one that played."""

    def __init__(self, limit):
        self.limit = limit
        self.kl = 0.0

    def note(self, old, new):
        self.kl = drift(old, new.detach())

    def __call__(self, _):
        return self.kl <= self.limit


def update(agent, opt, data, args):
    trust, used = Trust(args.kl), 0
    for obs, act, old, adv, ret in itertools.takewhile(trust, minibatches(data, args.minibatch, args.passes)):
        logits, v = agent(obs)
        d = Categorical(logits=logits)
        new = d.log_prob(act)
        ratio = (new - old).exp()
        gain = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        loss = -gain + 0.5 * (v - ret).pow(2).mean() * 0.02 - 0.005 * d.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        trust.note(old, new)
        used += 1
    return used


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=20)
    p.add_argument("--poles", type=int, default=8)
    p.add_argument("--length", type=int, default=96)
    p.add_argument("--minibatch", type=int, default=128)
    p.add_argument("--passes", type=int, default=4)
    p.add_argument("--kl", type=float, default=0.02)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    agent = DDP(Agent())
    opt = torch.optim.Adam(agent.parameters(), lr=args.lr)
    torch.manual_seed(100 + rank)
    env = Pole(args.poles, torch.Generator().manual_seed(rank))
    for it in range(args.iterations):
        data, ages = rollout(agent.module, env, args.length)
        used = update(agent, opt, data, args)
        every = [None] * world
        dist.all_gather_object(every, (ages, used))
        if rank == 0:
            all_ages = [a for ages, _ in every for a in ages]
            log.info("iteration %d length %.1f updates %s", it, statistics.fmean(all_ages or [0]),
                     [u for _, u in every])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
