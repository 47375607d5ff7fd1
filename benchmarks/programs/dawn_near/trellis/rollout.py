"""Policy-gradient training: rank 0 learns, the other ranks play episodes with the policy they are sent."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

CELLS, ACTIONS = 12, 3


class Policy(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * CELLS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi = nn.Linear(width, ACTIONS)
        self.v = nn.Linear(width, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.pi(h), self.v(h).squeeze(-1)


class RingWalk:
    """A walker on a ring of cells is paid for standing on the goal."""

    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.n = n

    def reset(self):
        self.pos = torch.randint(0, CELLS, (self.n,), generator=self.g)
        self.goal = torch.randint(0, CELLS, (self.n,), generator=self.g)
        return self.obs()

    def obs(self):
        return torch.cat([F.one_hot(self.pos, CELLS), F.one_hot(self.goal, CELLS)], 1).float()

    def step(self, action):
        self.pos = (self.pos + action - 1) % CELLS
        return self.obs(), (self.pos == self.goal).float()


@torch.no_grad()
def play(policy, env, horizon):
    obs, acts, rews = [], [], []
    o = env.reset()
    for _ in range(horizon):
        logits, _ = policy(o)
        a = torch.multinomial(logits.softmax(-1), 1, generator=env.g).squeeze(1)
        obs.append(o)
        acts.append(a)
        o, r = env.step(a)
        rews.append(r)
    return torch.stack(obs), torch.stack(acts), torch.stack(rews)


def returns_of(rews, gamma):
    out, run = torch.zeros_like(rews), torch.zeros(rews.shape[1])
    for t in reversed(range(len(rews))):
        run = rews[t] + gamma * run
        out[t] = run
    return out


def learn(policy, opt, obs, acts, rews, gamma):
    ret = returns_of(rews, gamma)
    logits, value = policy(obs)
    adv = ret - value.detach()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    logp = F.log_softmax(logits, -1)
    chosen = logp.gather(-1, acts.unsqueeze(-1)).squeeze(-1)
    entropy = -(logp.exp() * logp).sum(-1).mean()
    loss = -(adv * chosen).mean() + 0.25 * F.mse_loss(value, ret) - 0.01 * entropy
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=180)
    ap.add_argument("--envs", type=int, default=128)
    ap.add_argument("--horizon", type=int, default=16)
    ap.add_argument("--gamma", type=float, default=0.9)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3) if rank == 0 else None
    env = RingWalk(args.envs, 50 + rank)
    shape = (args.horizon, args.envs)

    for it in range(args.iters):
        flat = parameters_to_vector(policy.parameters()).detach()
        dist.broadcast(flat, src=0)
        if rank > 0:
            vector_to_parameters(flat.clone(), policy.parameters())
            obs, acts, rews = play(policy, env, args.horizon)
        else:
            obs = torch.zeros(*shape, 2 * CELLS)
            acts, rews = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        parts = []
        for t in (obs, acts, rews):
            got = [torch.empty_like(t) for _ in range(world)] if rank == 0 else None
            dist.gather(t, got, dst=0)
            if rank == 0:
                parts.append(torch.cat(got[1:], 1))
        if rank == 0:
            loss = learn(policy, opt, *parts, args.gamma)
            if it % 10 == 0:
                print(f"iter {it} loss {loss:.4f} reward per step {parts[2].mean().item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
