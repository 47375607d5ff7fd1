"""Soft actor-critic; every rank runs its own environments, gradients are averaged."""
import argparse
import copy
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from agents import Actor, Critic
from world import Memory, PointMasses

OBS, ACT = 4, 2


def polyak(target, source, rate):
    with torch.no_grad():
        for t, s in zip(target.parameters(), source.parameters()):
            t.lerp_(s, rate)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=900)
    ap.add_argument("--warmup", type=int, default=20)
    ap.add_argument("--envs", type=int, default=16)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--hidden", type=int, default=96)
    ap.add_argument("--gamma", type=float, default=0.97)
    ap.add_argument("--alpha", type=float, default=0.05)
    ap.add_argument("--log-every", type=int, default=150)
    ap.add_argument("--save", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "actor.pt"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(21)
    actor = DDP(Actor(OBS, ACT, args.hidden))
    critic = DDP(Critic(OBS, ACT, args.hidden))
    target = copy.deepcopy(critic.module).requires_grad_(False)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-3)

    torch.manual_seed(21 + 1000 * (rank + 1))  # exploration noise differs between ranks
    gen = torch.Generator().manual_seed(500 + rank)
    env = PointMasses(args.envs, gen)
    memory = Memory(20000, OBS, ACT)
    obs = env.observe()
    window = torch.zeros(3)
    for update in range(args.warmup + args.updates):
        with torch.no_grad():
            action, _ = actor.module.sample(obs)
        following, reward = env.step(action)
        memory.add(obs, action, reward, following)
        obs = env.observe()
        if update < args.warmup:
            continue

        o, a, r, n = memory.draw(args.batch, gen)
        with torch.no_grad():
            next_action, next_log_prob = actor.module.sample(n)
            value = torch.min(*target(n, next_action)) - args.alpha * next_log_prob
            goal = r + args.gamma * value
        left, right = critic(o, a)
        critic_loss = F.mse_loss(left, goal) + F.mse_loss(right, goal)
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()

        new_action, log_prob = actor(o, draw=True)
        critic.module.requires_grad_(False)
        actor_loss = (args.alpha * log_prob - torch.min(*critic.module(o, new_action))).mean()
        actor_opt.zero_grad()
        actor_loss.backward()
        actor_opt.step()
        critic.module.requires_grad_(True)
        polyak(target, critic.module, 0.01)

        window += torch.tensor([critic_loss.item(), actor_loss.item(), reward.mean().item()])
        if (update - args.warmup + 1) % args.log_every == 0:
            dist.all_reduce(window)
            window /= world * args.log_every
            if rank == 0:
                print(f"{update - args.warmup + 1}: critic {window[0]:.3f} actor {window[1]:.3f} reward {window[2]:.3f}", flush=True)
            window.zero_()
    if rank == 0:
        torch.save({"actor": actor.module.state_dict()}, args.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
