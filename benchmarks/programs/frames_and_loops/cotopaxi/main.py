import argparse
import collections
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Track:
    """A point mass on a noisy line; the expert brakes before the goal."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.reset()

    def reset(self):
        self.x, self.v, self.t = self.rng.uniform(-3, 3), 0.0, 0
        self.goal = self.rng.uniform(-1, 1)
        return self.obs()

    def obs(self):
        return [self.x - self.goal, self.v, self.goal, self.t / 40]

    def expert(self):
        return max(-1.0, min(1.0, -1.2 * (self.x - self.goal) - 1.5 * self.v))

    def step(self, a):
        self.v += 0.2 * a + self.rng.gauss(0, 0.01)
        self.x += 0.2 * self.v
        self.t += 1
        return self.obs(), -abs(self.x - self.goal), self.t >= 40


class Policy(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, o):
        return torch.tanh(self.net(o)).squeeze(-1)


def send_weights(policy):
    flat = nn.utils.parameters_to_vector(policy.parameters()).detach()
    dist.broadcast(flat, src=0)
    if dist.get_rank() != 0:
        with torch.no_grad():
            nn.utils.vector_to_parameters(flat, policy.parameters())


@torch.no_grad()
def collect(policy, env, steps, beta, rng):
    rows, ret, episodes = [], 0.0, 0
    o = env.reset()
    for _ in range(steps):
        label = env.expert()
        rows.append(o + [label])
        act = label if rng.random() < beta else policy(torch.tensor(o)).item()
        o, r, done = env.step(act)
        ret += r
        if done:
            episodes += 1
            o = env.reset()
    return torch.tensor(rows), ret / max(1, episodes)


class Learner:
    def __init__(self, policy, args):
        self.policy, self.args = policy, args
        self.opt = torch.optim.Adam(policy.parameters(), lr=args.lr)
        self.memory = collections.deque(maxlen=args.memory)
        self.g = torch.Generator().manual_seed(args.seed)

    def store(self, parts):
        for part in parts:
            self.memory.extend(part.unbind(0))

    def update(self, steps):
        data = torch.stack(list(self.memory))
        total = 0.0
        for _ in range(steps):
            b = data[torch.randint(0, len(data), (self.args.batch,), generator=self.g)]
            loss = F.mse_loss(self.policy(b[:, :4]), b[:, 4])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item() / steps
        return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=12)
    ap.add_argument("--refresh", type=int, default=2)
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--updates", type=int, default=25)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--memory", type=int, default=6000)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=9)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    policy = Policy()
    learner = Learner(policy, args) if rank == 0 else None
    rng = random.Random(args.seed * 1000 + rank)
    env = Track(rng)
    rows = torch.zeros(args.steps, 5)
    for rnd in range(args.rounds):
        if rnd % args.refresh == 0:
            send_weights(policy)
        beta = max(0.0, 1.0 - rnd / (args.rounds / 2))
        if rank == 0:
            score = torch.zeros(2)
            parts = [torch.zeros_like(rows) for _ in range(world)]
            dist.gather(rows, parts, dst=0)
            dist.reduce(score, dst=0)
            learner.store(parts[1:])
            loss = learner.update(args.updates)
            print(f"round {rnd} loss {loss:.5f} return {score[0] / score[1]:.2f} memory {len(learner.memory)} "
                  f"beta {beta:.2f}", flush=True)
        else:
            rows, ret = collect(policy, env, args.steps, beta, rng)
            dist.gather(rows, dst=0)
            dist.reduce(torch.tensor([ret, 1.0]), dst=0)
    send_weights(policy)
    if rank == 0:
        os.makedirs("out_cotopaxi", exist_ok=True)
        torch.save(policy.state_dict(), "out_cotopaxi/policy.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
