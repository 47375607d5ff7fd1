"""Actor/learner without RPC: actors send episodes, the learner sends weights back."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn

LEARNER, OBS, ACT = 0, 6, 3


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 24), nn.Tanh(), nn.Linear(24, ACT))

    def forward(self, obs):
        return self.body(obs)

    def pack(self):
        return torch.cat([p.detach().flatten() for p in self.parameters()])

    def unpack(self, flat):
        offset = 0
        for p in self.parameters():
            p.data.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()


class Corridor:
    """Ends at a wall; the walls stand closer for some seeds."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.limit = 3 + int(torch.randint(0, 14, (1,), generator=self.gen))

    def rollout(self, policy):
        steps = []
        for _ in range(self.limit):
            obs = torch.randn(OBS, generator=self.gen)
            action = policy(obs).softmax(0).multinomial(1).item()
            steps.append(torch.cat([obs, torch.tensor([float(action), float(action == 1)])]))
        return torch.stack(steps)


def pad(episode, horizon):
    out = torch.zeros(horizon, OBS + 2)
    out[: len(episode)] = episode[:horizon]
    return out


def act(args, rank):
    torch.manual_seed(rank)
    policy = Policy()
    flat = torch.empty_like(policy.pack())
    sent, number = 0, 0
    while sent < args.updates:
        episode = Corridor(1000 * rank + number).rollout(policy)
        number += 1
        if len(episode) < args.min_length:
            continue
        dist.send(pad(episode, args.horizon), dst=LEARNER, tag=number)
        dist.recv(flat, src=LEARNER, tag=number)
        policy.unpack(flat)
        sent += 1


def learn(args, actors):
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for update in range(1, args.updates + 1):
        episodes = []
        for actor in actors:
            buffer = torch.empty(args.horizon, OBS + 2)
            dist.recv(buffer, src=actor, tag=update)
            episodes.append(buffer)
        batch = torch.cat(episodes)
        logp = policy(batch[:, :OBS]).log_softmax(-1).gather(1, batch[:, OBS:OBS + 1].long())
        loss = -(logp.squeeze(1) * (batch[:, -1] - batch[:, -1].mean())).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        for actor in actors:
            dist.send(policy.pack(), dst=actor, tag=update)
        if update % 10 == 0:
            print(f"update {update} reward {batch[:, -1].mean():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--horizon", type=int, default=16)
    parser.add_argument("--min-length", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == LEARNER:
        learn(args, range(1, world))
    else:
        act(args, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
