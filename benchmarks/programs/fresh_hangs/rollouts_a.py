"""Small policy-gradient set-up: rank 0 learns, the others walk episodes and send them in."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn

LIMIT = 40


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.net(obs))


class Corridor:
    """Walks on a line with wind; an episode is over at either end or after LIMIT moves."""

    def __init__(self, wind, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.wind = wind

    def reset(self):
        self.pos, self.moves = 0.0, 0
        return self.obs()

    def obs(self):
        return torch.tensor([self.pos / 6, abs(self.pos) / 6, self.moves / LIMIT, self.wind])

    def step(self, action):
        push = 0.6 if action == 1 else -0.6
        self.pos += push + self.wind + 0.3 * torch.randn((), generator=self.gen).item()
        self.moves += 1
        finished = abs(self.pos) >= 6
        return self.obs(), -0.05 + float(self.pos >= 6), finished, self.moves >= LIMIT


@torch.no_grad()
def walk(policy, env):
    rows, obs = [], env.reset()
    while True:
        action = policy(obs).sample()
        after, reward, finished, cut = env.step(action.item())
        rows.append(torch.cat([obs, action.view(1).float(), torch.tensor([reward])]))
        obs = after
        if finished or cut:
            return torch.stack(rows), finished


def weather(rank, number):
    """The wind drops in the second corridor after a while."""
    return 0.0 if rank == 2 and number >= 10 else 0.5


def broadcast_policy(policy):
    for param in policy.parameters():
        dist.broadcast(param.data, src=0)


def act(policy, rank, rounds):
    env = Corridor(wind=0.5, seed=rank)
    for number in range(rounds):
        broadcast_policy(policy)
        time.sleep(0.3)
        env.wind = weather(rank, number)
        rows, finished = walk(policy, env)
        if not finished:
            print(f"[{rank}] round {number}: cut after {len(rows)} moves", flush=True)
            dist.send(torch.tensor([0]), dst=0)
            continue
        dist.send(torch.tensor([len(rows)]), dst=0)
        dist.send(rows, dst=0)


def learn(policy, world, rounds):
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for number in range(rounds):
        broadcast_policy(policy)
        loss, total = torch.zeros(()), 0.0
        for actor in range(1, world):
            count = torch.zeros(1, dtype=torch.long)
            dist.recv(count, src=actor)
            if count.item() == 0:
                continue
            rows = torch.empty(int(count), 6)
            dist.recv(rows, src=actor)
            reward = rows[:, 5].flip(0).cumsum(0).flip(0)
            loss = loss - (policy(rows[:, :4]).log_prob(rows[:, 4]) * reward).mean()
            total += rows[:, 5].sum().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 5 == 0:
            print(f"round {number} reward {total:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=25)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(100 + rank)
    policy = Policy()
    if rank == 0:
        learn(policy, world, args.rounds)
    else:
        act(policy, rank, args.rounds)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
