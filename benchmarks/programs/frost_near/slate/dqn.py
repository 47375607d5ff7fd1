import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from replay import FrameCache, Replay

SIDE = 40


class Chase:
    """A dot must follow a light along a row; frames are drawn over one of many backgrounds."""

    def __init__(self, envs, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.cache = FrameCache(64)
        self.envs = envs
        self.dot = torch.randint(0, SIDE, (envs,), generator=self.g)
        self.light = torch.randint(0, SIDE, (envs,), generator=self.g)
        self.scene = torch.randint(0, 200, (envs,), generator=self.g)

    @staticmethod
    def render(scene):
        return 0.1 * torch.randn(4, SIDE, SIDE, generator=torch.Generator().manual_seed(scene))

    def frames(self):
        out = torch.stack([self.cache.get(int(s), self.render) for s in self.scene])
        rows = torch.arange(self.envs)
        out[rows, 0, 10, self.dot] += 2.0
        out[rows, 1, 30, self.light] += 2.0
        return out

    def step(self, action):
        before = (self.dot - self.light).abs()
        self.dot = (self.dot + action - 1).clamp(0, SIDE - 1)
        after = (self.dot - self.light).abs()
        done = after == 0
        self.light[done] = torch.randint(0, SIDE, (int(done.sum()),), generator=self.g)
        self.scene[done] = torch.randint(0, 200, (int(done.sum()),), generator=self.g)
        return (before - after).float() + done.float()


def q_net():
    return nn.Sequential(nn.Conv2d(4, 8, 5, stride=4), nn.ReLU(), nn.Flatten(),
                         nn.Linear(8 * 9 * 9, 64), nn.ReLU(), nn.Linear(64, 3))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iterations", type=int, default=150)
    p.add_argument("--envs", type=int, default=16)
    p.add_argument("--capacity", type=int, default=1200)
    p.add_argument("--sync-every", type=int, default=25)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    online = DDP(q_net())
    target = q_net().requires_grad_(False)
    target.load_state_dict(online.module.state_dict())
    opt = torch.optim.Adam(online.parameters(), lr=1e-3)
    env, replay = Chase(args.envs, 300 + rank), Replay(args.capacity)
    g = torch.Generator().manual_seed(800 + rank)
    frames, earned = env.frames(), 0.0
    for it in range(1, args.iterations + 1):
        with torch.no_grad():
            greedy = online.module(frames).argmax(1)
        explore = torch.rand(args.envs, generator=g) < max(0.1, 1 - it / 80)
        action = torch.where(explore, torch.randint(0, 3, (args.envs,), generator=g), greedy)
        reward = env.step(action)
        nexts = env.frames()
        replay.extend(frames, action, reward, nexts)
        frames = nexts
        earned += reward.mean().item()
        f, a, r, s = replay.sample(32, g)
        with torch.no_grad():
            goal = r + 0.9 * target(s).max(1).values
        loss = F.smooth_l1_loss(online(f).gather(1, a[:, None]).squeeze(1), goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % args.sync_every == 0:
            target.load_state_dict(online.module.state_dict())
            stat = torch.tensor([earned / args.sync_every, float(len(replay))])
            dist.all_reduce(stat)
            earned = 0.0
            if rank == 0:
                print(f"it {it} reward {stat[0] / world:.3f} stored {int(stat[1])}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
