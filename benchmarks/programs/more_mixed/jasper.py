"""Actor-learner REINFORCE on a contextual bandit; rank 0 learns, other ranks act."""
import argparse

import torch
import torch.distributed as dist
from torch import nn

OBS, ACT = 10, 4


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 32), nn.Tanh(), nn.Linear(32, ACT))

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.body(obs))


class Bandit:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.w = torch.randn(OBS, ACT, generator=torch.Generator().manual_seed(12))

    def observe(self, n):
        return torch.randn(n, OBS, generator=self.gen)

    def reward(self, obs, act):
        score = obs @ self.w
        return (score.argmax(1) == act).float()


def publish(policy):
    for p in policy.parameters():
        dist.broadcast(p.data, src=0)


def actor(args, rank):
    policy, env = Policy(), Bandit(50 + rank)
    for _ in range(args.updates):
        publish(policy)
        with torch.no_grad():
            obs = env.observe(args.horizon)
            act = policy(obs).sample()
        rew = env.reward(obs, act)
        dist.send(torch.cat([obs, act.float()[:, None], rew[:, None]], 1), dst=0, tag=rank)


def learner(args, world):
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    baseline = 0.0
    for it in range(args.updates):
        publish(policy)
        parts = []
        for src in range(1, world):
            buf = torch.empty(args.horizon, OBS + 2)
            dist.recv(buf, src=src, tag=src)
            parts.append(buf)
        batch = torch.cat(parts)
        obs, act, rew = batch[:, :OBS], batch[:, OBS].long(), batch[:, OBS + 1]
        pi = policy(obs)
        loss = -((rew - baseline) * pi.log_prob(act)).mean() - 0.01 * pi.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        baseline = 0.9 * baseline + 0.1 * rew.mean().item()
        if it % 10 == 0:
            print(f"update {it} reward {rew.mean():.3f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=40)
    ap.add_argument("--horizon", type=int, default=64)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    if rank == 0:
        learner(args, world)
    else:
        actor(args, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
