import argparse
import copy
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from replay import ReplayBuffer


class QNet(nn.Module):
    def __init__(self, actions=3):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 16, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(32 * 5 * 5, 128), nn.ReLU(), nn.Linear(128, actions))

    def forward(self, x):
        return self.head(self.body(x))


class CatchEnv:
    """A batch of falling-ball games on a 24x24 screen, four stacked frames."""

    def __init__(self, n, seed):
        self.n = n
        self.g = torch.Generator().manual_seed(seed)
        self.ball = torch.stack([torch.randint(0, 24, (n,), generator=self.g), torch.randint(0, 20, (n,), generator=self.g)], 1)
        self.paddle = torch.full((n,), 12)
        self.frames = torch.zeros(n, 4, 24, 24)
        self._draw()

    def _draw(self):
        frame = torch.zeros(self.n, 24, 24)
        rows = torch.arange(self.n)
        frame[rows, self.ball[:, 1], self.ball[:, 0]] = 1.0
        for dx in (-1, 0, 1):
            frame[rows, 23, (self.paddle + dx).clamp(0, 23)] = 1.0
        self.frames = torch.cat([self.frames[:, 1:], frame[:, None]], 1)

    def step(self, action):
        self.paddle = (self.paddle + 2 * (action - 1)).clamp(1, 22)
        self.ball[:, 1] += 1
        done = self.ball[:, 1] >= 23
        hit = (self.ball[:, 0] - self.paddle).abs() <= 1
        reward = done.float() * (2 * hit.float() - 1)
        fresh = torch.randint(0, 24, (self.n,), generator=self.g)
        self.ball[:, 0] = torch.where(done, fresh, self.ball[:, 0])
        self.ball[:, 1] = torch.where(done, torch.zeros_like(fresh), self.ball[:, 1])
        self._draw()
        return self.frames.clone(), reward, done.float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=700)
    ap.add_argument("--envs", type=int, default=32)
    ap.add_argument("--capacity", type=int, default=4096)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--warmup", type=int, default=10)
    ap.add_argument("--sync-every", type=int, default=20)
    ap.add_argument("--gamma", type=float, default=0.97)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(QNet())
    target = copy.deepcopy(model.module).requires_grad_(False)
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)
    env = CatchEnv(args.envs, seed=40 + rank)
    buffer = ReplayBuffer(args.capacity, seed=70 + rank)
    explore = torch.Generator().manual_seed(90 + rank)
    obs, earned, ended, t0 = env.frames.clone(), 0.0, 0.0, time.time()
    for it in range(1, args.iters + 1):
        eps = max(0.1, 1 - it / (0.5 * args.iters))
        with torch.no_grad():
            greedy = model.module(obs).argmax(1)
        random = torch.randint(0, 3, greedy.shape, generator=explore)
        action = torch.where(torch.rand(greedy.shape, generator=explore) < eps, random, greedy)
        nxt, reward, done = env.step(action)
        buffer.push(obs, action, reward, nxt, done)
        obs = nxt
        earned += reward.sum().item()
        ended += done.sum().item()
        if it > args.warmup:
            b = buffer.sample(args.batch_size)
            with torch.no_grad():
                q_next = target(b["next"]).max(1).values
                y = b["reward"] + args.gamma * (1 - b["done"]) * q_next
            q = model(b["obs"]).gather(1, b["action"][:, None])[:, 0]
            loss = F.smooth_l1_loss(q, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if it % args.sync_every == 0:
            target.load_state_dict(model.module.state_dict())
            stats = torch.tensor([earned, ended])
            dist.all_reduce(stats)
            earned = ended = 0.0
            if rank == 0:
                print(f"iter {it} eps {eps:.2f} buffer {buffer.size} return {(stats[0] / stats[1].clamp(min=1)).item():.3f} "
                      f"{time.time() - t0:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
