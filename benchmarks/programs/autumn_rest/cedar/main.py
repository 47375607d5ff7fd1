"""Distributed Q-learning on a small control task; every rank has its own actor and replay."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Replay:
    """Grows as experience comes in, until ``capacity``; then the oldest chunk goes."""

    def __init__(self, capacity_chunks):
        self.chunks = []
        self.capacity = capacity_chunks

    def push(self, chunk):
        self.chunks.append(chunk)
        if len(self.chunks) > self.capacity:
            self.chunks.pop(0)

    def sample(self, n, gen):
        picks = torch.randint(0, len(self.chunks), (n,), generator=gen).tolist()
        rows = torch.randint(0, len(self.chunks[0][0]), (n,), generator=gen).tolist()
        return [torch.stack([self.chunks[c][k][r] for c, r in zip(picks, rows)]) for k in range(4)]

    def mbytes(self):
        return sum(t.numel() * t.element_size() for c in self.chunks for t in c) / 1e6


class PointTask:
    """Many copies of a point on a plane that is to be driven to the origin; observed through a wide random map."""

    def __init__(self, copies, obs, gen):
        self.gen = gen
        self.map = torch.randn(4, obs, generator=torch.Generator().manual_seed(42))
        self.moves = torch.tensor([[0.0, 0.1], [0.0, -0.1], [0.1, 0.0], [-0.1, 0.0]])
        self.state = torch.cat([torch.rand(copies, 2, generator=gen) * 2 - 1, torch.zeros(copies, 2)], 1)

    def observe(self):
        return torch.tanh(self.state @ self.map)

    def step(self, action):
        vel = 0.7 * self.state[:, 2:] + self.moves[action]
        pos = (self.state[:, :2] + vel).clamp(-1.5, 1.5)
        self.state = torch.cat([pos, vel], 1)
        reward = -pos.norm(dim=1)
        lost = torch.rand(len(pos), generator=self.gen) < 0.02
        self.state[lost, :2] = torch.rand(int(lost.sum()), 2, generator=self.gen) * 2 - 1
        return reward


def average_gradients(model):
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(grads)
    grads /= dist.get_world_size()
    at = 0
    for p in model.parameters():
        p.grad.copy_(grads[at:at + p.numel()].view_as(p))
        at += p.numel()


def qnet(obs):
    return nn.Sequential(nn.Linear(obs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=260)
    p.add_argument("--copies", type=int, default=256)
    p.add_argument("--obs", type=int, default=512)
    p.add_argument("--capacity", type=int, default=150)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--gamma", type=float, default=0.9)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    online, target = qnet(args.obs), qnet(args.obs)
    for t in online.parameters():
        dist.broadcast(t.data, src=0)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-4)
    gen = torch.Generator().manual_seed(1000 + rank)
    task, replay = PointTask(args.copies, args.obs, gen), Replay(args.capacity)
    for it in range(1, args.iterations + 1):
        epsilon = max(0.05, 1 - it / 100)
        obs = task.observe()
        with torch.no_grad():
            action = online(obs).argmax(1)
        explore = torch.rand(args.copies, generator=gen) < epsilon
        action[explore] = torch.randint(0, 4, (int(explore.sum()),), generator=gen)
        reward = task.step(action)
        replay.push((obs, action, reward, task.observe()))
        o, a, r, o2 = replay.sample(args.batch, gen)
        with torch.no_grad():
            best = online(o2).argmax(1, keepdim=True)
            goal = r + args.gamma * target(o2).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(online(o).gather(1, a[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(online)
        optimizer.step()
        if it % 20 == 0:
            target.load_state_dict(online.state_dict())
            score = reward.mean()
            dist.all_reduce(score)
            if rank == 0:
                print(f"it {it} reward {score / dist.get_world_size():.3f} loss {loss:.4f} replay {replay.mbytes():.0f} MB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
