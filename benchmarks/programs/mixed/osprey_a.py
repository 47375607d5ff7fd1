import argparse
import copy
import random
from collections import deque

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Field:
    def __init__(self, seed, size=48):
        self.gen = torch.Generator().manual_seed(seed)
        self.size = size
        self.reset()

    def reset(self):
        self.state = torch.rand(4, self.size, self.size, generator=self.gen)
        self.t = 0
        return self.state

    def step(self, action):
        self.t += 1
        self.state = self.state.roll(1, 0).clone()
        self.state[0] = torch.rand(self.size, self.size, generator=self.gen)
        reward = 1.0 if int(self.state[1].mean() * 100) % 3 == action else 0.0
        return self.state, reward, self.t >= 50


class QNet(nn.Module):
    def __init__(self, actions=3):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(4, 8, 5, stride=3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(actions))

    def forward(self, x):
        return self.net(x)


class Replay:
    def __init__(self, capacity):
        self.items = deque(maxlen=capacity)

    def add(self, *transition):
        self.items.append(transition)

    def sample(self, n, rng):
        s, a, r, s2, d = zip(*rng.sample(self.items, n))
        return torch.stack(s), torch.tensor(a), torch.tensor(r), torch.stack(s2), torch.tensor(d, dtype=torch.float)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=260)
    parser.add_argument("--capacity", type=int, default=800)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    rng = random.Random(rank)
    env, replay = Field(seed=rank), Replay(args.capacity)
    net = QNet()
    net(torch.zeros(1, 4, 48, 48))
    target = copy.deepcopy(net).requires_grad_(False)
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    state, wins = env.reset(), 0.0
    for step in range(args.steps):
        for _ in range(5):
            if rng.random() < 0.2:
                action = rng.randrange(3)
            else:
                with torch.no_grad():
                    action = int(net(state[None]).argmax())
            nxt, reward, done = env.step(action)
            replay.add(state, action, reward, nxt, done)
            wins += reward
            state = env.reset() if done else nxt
        if len(replay.items) < 32:
            batch = replay.sample(len(replay.items), rng)
        else:
            batch = replay.sample(32, rng)
        s, a, r, s2, d = batch
        with torch.no_grad():
            goal = r + 0.9 * (1 - d) * target(s2).max(-1).values
        q = model(s).gather(1, a[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q, goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 19:
            target.load_state_dict(net.state_dict())
        if rank == 0 and step % 52 == 51:
            print(f"step {step + 1} loss {loss.item():.4f} reward {wins / (step + 1) / 5:.3f} replay {len(replay.items)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
