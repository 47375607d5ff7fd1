import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel as DDP


class PointEnv:
    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.n = n
        self.pos = torch.zeros(n, 2)
        self.goal = torch.randn(n, 2, generator=self.g)

    def obs(self):
        return torch.cat([self.pos, self.goal], 1)

    def step(self, action):
        moves = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1]])
        before = (self.goal - self.pos).norm(dim=1)
        self.pos = self.pos + moves[action]
        after = (self.goal - self.pos).norm(dim=1)
        done = after < 0.15
        self.pos[done] = 0
        self.goal[done] = torch.randn(int(done.sum()), 2, generator=self.g)
        return (before - after) * 10


class ActorCritic(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, 4)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return self.pi(h), self.v(h).squeeze(-1)


@torch.no_grad()
def collect(net, env, horizon, gamma=0.95):
    rows = []
    for _ in range(horizon):
        o = env.obs()
        logits, value = net(o)
        d = Categorical(logits=logits)
        a = d.sample()
        rows.append((o, a, d.log_prob(a), value, env.step(a)))
    obs, act, logp, val, rew = (torch.stack(c) for c in zip(*rows))
    ret, acc = torch.zeros_like(rew), net(env.obs())[1]
    for t in reversed(range(horizon)):
        acc = rew[t] + gamma * acc
        ret[t] = acc
    return tuple(x.flatten(0, 1) for x in (obs, act, logp, ret, ret - val))


def ppo_update(policy, opt, batch, args):
    obs, act, old_logp, ret, adv = batch
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    net = policy.module if isinstance(policy, DDP) else policy
    for idx in torch.randperm(len(obs)).chunk(args.minibatches):
        logits, value = net(obs[idx])
        d = Categorical(logits=logits)
        ratio = (d.log_prob(act[idx]) - old_logp[idx]).exp()
        pg = -torch.min(ratio * adv[idx], ratio.clamp(0.8, 1.2) * adv[idx]).mean()
        loss = pg + 0.5 * F.mse_loss(value, ret[idx]) - 0.01 * d.entropy().mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        opt.step()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=8)
    p.add_argument("--minibatches", type=int, default=4)
    p.add_argument("--horizon", type=int, default=16)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    policy = DDP(ActorCritic())
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    torch.manual_seed(1000 + rank)
    env = PointEnv(8, seed=rank)
    for it in range(args.iters):
        batch = collect(policy.module, env, args.horizon)
        ppo_update(policy, opt, batch, args)
        mean_ret = batch[3].mean()
        dist.all_reduce(mean_ret)
        if rank == 0:
            print(it, round(mean_ret.item() / dist.get_world_size(), 3), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
