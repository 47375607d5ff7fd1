"""Actor-learner Q-learning: rank 0 learns from a replay buffer, the others act with weights a few steps old."""
import argparse
from collections import deque

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STATES, ACTIONS, HORIZON = 20, 3, 12


class QNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(STATES, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, ACTIONS))

    def forward(self, s):
        return self.net(F.one_hot(s, STATES).float())


def play(q, gen, n, epsilon):
    """A corridor: left, stay, right; the reward lies at the far end and slips happen."""
    s = torch.randint(0, STATES - 1, (n,), generator=gen)
    rows = []
    with torch.no_grad():
        for _ in range(HORIZON):
            a = q(s).argmax(1)
            wild = torch.rand(n, generator=gen) < epsilon
            a = torch.where(wild, torch.randint(0, ACTIONS, (n,), generator=gen), a)
            slip = torch.rand(n, generator=gen) < 0.1
            nxt = (s + torch.where(slip, -(a - 1), a - 1)).clamp(0, STATES - 1)
            r = (nxt == STATES - 1).float() - 0.02
            rows.append(torch.stack([s.float(), a.float(), r, nxt.float()], 1))
            s = nxt
    return torch.cat(rows)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=150)
    ap.add_argument("--updates", type=int, default=6)
    ap.add_argument("--actors-envs", type=int, default=24)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    q = QNet()
    learner = rank == 0
    if learner:
        target = QNet()
        opt = torch.optim.Adam(q.parameters(), lr=2e-3)
        replay = deque(maxlen=40)
        pick = torch.Generator().manual_seed(77)
    gen = torch.Generator().manual_seed(10 + rank)
    block = torch.zeros(args.actors_envs * HORIZON, 4)
    for it in range(args.iterations):
        if it % 3 == 0:
            flat = parameters_to_vector(q.parameters()).detach().clone()
            dist.broadcast(flat, src=0)
            vector_to_parameters(flat, q.parameters())
        if not learner:
            block = play(q, gen, args.actors_envs, max(0.05, 0.8 - it / 40))
        parts = [torch.empty_like(block) for _ in range(world)] if learner else None
        dist.gather(block, parts, dst=0)
        if not learner:
            continue
        replay.extend(parts[1:])
        if it % 5 == 0:
            target.load_state_dict(q.state_dict())
        data = torch.cat(list(replay))
        for _ in range(args.updates):
            rows = data[torch.randint(len(data), (256,), generator=pick)]
            s, a, r, nxt = rows[:, 0].long(), rows[:, 1].long(), rows[:, 2], rows[:, 3].long()
            with torch.no_grad():
                y = r + 0.9 * target(nxt).max(1).values
            loss = F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if it % 10 == 0:
            reward = torch.cat(parts[1:])[:, 2].mean().item()
            print(f"iteration {it} td {loss.item():.4f} reward {reward:.3f} buffer {len(data)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
