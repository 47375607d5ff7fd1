"""One learner (rank 0), the other ranks act. Trajectories go up by send, weights come down by broadcast."""
import argparse
from collections import deque

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributions import Categorical
from torch.nn.utils import parameters_to_vector, vector_to_parameters

OBS, ACT, T, B = 4, 2, 20, 8


def make_policy():
    return nn.Sequential(nn.Linear(OBS, 64), nn.Tanh(), nn.Linear(64, ACT))


class Pendulumish:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.s = torch.zeros(B, OBS)

    def step(self, a):
        push = (a.float() * 2 - 1).unsqueeze(1)
        noise = 0.05 * torch.randn(B, OBS, generator=self.g)
        self.s = 0.9 * self.s + 0.1 * push * torch.tensor([1.0, 0.5, 0.0, -0.5]) + noise
        return self.s, -self.s.abs().sum(1)


def act(policy, env):
    obs, acts, rew = [], [], []
    s = env.s
    with torch.no_grad():
        for _ in range(T):
            a = Categorical(logits=policy(s)).sample()
            obs.append(s)
            acts.append(a)
            s, r = env.step(a)
            rew.append(r)
    return torch.cat([torch.stack(obs).flatten(), torch.stack(acts).float().flatten(), torch.stack(rew).flatten()])


def learn(policy, opt, flat):
    n = T * B
    obs = flat[: n * OBS].view(n, OBS)
    a = flat[n * OBS : n * OBS + n].long()
    r = flat[n * OBS + n :].view(T, B)
    ret = r.flip(0).cumsum(0).flip(0).flatten()
    adv = (ret - ret.mean()) / (ret.std() + 1e-6)
    loss = -(Categorical(logits=policy(obs)).log_prob(a) * adv).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item(), r.mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    policy = make_policy()
    flat = torch.empty(T * B * (OBS + 2))
    opt = torch.optim.RMSprop(policy.parameters(), lr=1e-3) if rank == 0 else None
    env = Pendulumish(rank) if rank else None
    recent = deque(maxlen=10)
    for i in range(args.rounds):
        w = parameters_to_vector(policy.parameters()).detach()
        dist.broadcast(w, src=0)
        if rank:
            vector_to_parameters(w, policy.parameters())
            dist.send(act(policy, env), dst=0, tag=i)
        else:
            for src in range(1, world):
                dist.recv(flat, src=src, tag=i)
                _, mean_r = learn(policy, opt, flat)
                recent.append(mean_r)
            if i % 10 == 0:
                print(f"round {i} reward {sum(recent) / len(recent):.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
