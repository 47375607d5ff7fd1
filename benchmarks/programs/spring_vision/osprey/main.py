"""Ape-X DQN: rank 0 learns, all others act with their own epsilon."""
import argparse
import copy
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from broker import WeightBroker, resident_mb
from replay import PrioritizedReplay

log = logging.getLogger("apex")
OBS, ACTIONS = 16, 5


class DuelingQ(nn.Module):
    def __init__(self, hidden=448):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.adv, self.val = nn.Linear(hidden, ACTIONS), nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.body(x)
        a = self.adv(h)
        return self.val(h) + a - a.mean(1, keepdim=True)


class TrackingEnvs:
    """A batch of targets on a ring; the action moves the sensor, the reward is the signal strength."""

    def __init__(self, n, gen):
        self.n, self.gen = n, gen
        self.target = torch.rand(n, generator=gen) * 6.28
        self.drift = (torch.rand(n, generator=gen) - 0.5) * 0.2
        self.sensor = torch.rand(n, generator=gen) * 6.28
        self.freq = torch.arange(1, 5).float()

    def obs(self):
        a = self.target.unsqueeze(1) * self.freq
        b = self.sensor.unsqueeze(1) * self.freq
        return torch.cat([a.sin(), a.cos(), b.sin(), b.cos()], 1)

    def step(self, action):
        self.sensor = self.sensor + (action.float() - 2) * 0.2
        self.target = self.target + self.drift
        reward = (self.target - self.sensor).cos()
        done = (torch.rand(self.n, generator=self.gen) < 0.02).float()
        fresh = torch.rand(self.n, generator=self.gen) * 6.28
        nxt = self.obs()
        self.target = torch.where(done > 0, fresh, self.target)
        return nxt, reward, done


def td_target(online, target, reward, done, nxt, gamma):
    best = online(nxt).argmax(1, keepdim=True)
    return reward + gamma * (1 - done) * target(nxt).gather(1, best).squeeze(1)


def actor(args, rank, world, broker):
    gen = torch.Generator().manual_seed(300 + rank)
    torch.manual_seed(300 + rank)
    net = DuelingQ()
    eps = 0.4 ** (1 + 3 * (rank - 1) / max(world - 2, 1))
    envs = TrackingEnvs(args.envs, gen)
    for _ in range(args.rounds):
        broker.refresh(net)
        rows = []
        with torch.no_grad():
            for _ in range(args.unroll):
                obs = envs.obs()
                q = net(obs)
                greedy = q.argmax(1)
                rand = torch.randint(ACTIONS, (args.envs,), generator=gen)
                act = torch.where(torch.rand(args.envs, generator=gen) < eps, rand, greedy)
                nxt, rew, done = envs.step(act)
                y = td_target(net, net, rew, done, nxt, args.gamma)
                prio = (y - q.gather(1, act.unsqueeze(1)).squeeze(1)).abs()
                rows.append(torch.cat([obs, nxt, torch.stack([act.float(), rew, done, prio], 1)], 1))
        dist.send(torch.cat(rows), dst=0, tag=rank)


def learner(args, world, broker):
    torch.manual_seed(300)
    net = DuelingQ()
    target = copy.deepcopy(net)
    opt = torch.optim.Adam(net.parameters(), args.lr)
    memory = PrioritizedReplay(20_000, OBS)
    inbox = torch.empty(args.envs * args.unroll, 2 * OBS + 4)
    broker.publish(net)
    t0, updates, reward, losses = time.time(), 0, 0.0, 0.0
    for rnd in range(1, args.rounds + 1):
        for src in range(1, world):
            dist.recv(inbox, src=src, tag=src)
            obs, nxt, misc = inbox.split([OBS, OBS, 4], 1)
            memory.add(obs, misc[:, 0], misc[:, 1], misc[:, 2], nxt, misc[:, 3])
            reward += misc[:, 1].mean().item()
        for _ in range(args.updates_per_round):
            idx, obs, act, rew, done, nxt, w = memory.sample(args.batch_size)
            with torch.no_grad():
                y = td_target(net, target, rew, done, nxt, args.gamma)
            q = net(obs).gather(1, act.unsqueeze(1)).squeeze(1)
            loss = (w * F.smooth_l1_loss(q, y, reduction="none")).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            opt.step()
            memory.update(idx, (y - q.detach()).abs())
            updates += 1
            losses += loss.item()
            if updates % args.target_every == 0:
                target.load_state_dict(net.state_dict())
        broker.publish(net)
        if rnd % 50 == 0:
            log.info("round %d reward %.3f loss %.4f version %d rss %.0f MB (%.1fs)", rnd,
                     reward / (50 * (world - 1)), losses / (50 * args.updates_per_round), broker.version,
                     resident_mb(), time.time() - t0)
            reward = losses = 0.0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=400)
    ap.add_argument("--envs", type=int, default=16)
    ap.add_argument("--unroll", type=int, default=8)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--updates-per-round", type=int, default=2)
    ap.add_argument("--target-every", type=int, default=100)
    ap.add_argument("--gamma", type=float, default=0.9)
    ap.add_argument("--lr", type=float, default=5e-4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    broker = WeightBroker(rank)
    if rank == 0:
        learner(args, world, broker)
    else:
        actor(args, rank, world, broker)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
