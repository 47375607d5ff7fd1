"""OpenAI-style evolution strategies. Workers exchange seeds and returns, not weights."""
import argparse
import logging

import numpy as np
import torch
import torch.distributed as dist

from env import PendulumCart


class NoiseTable:
    def __init__(self, size=2_000_000, seed=123):
        self.data = np.random.RandomState(seed).randn(size).astype(np.float32)

    def get(self, start, n):
        return self.data[start:start + n]

    def sample(self, rng, n):
        return int(rng.randint(0, len(self.data) - n + 1))


class RunningStat:
    def __init__(self, dim):
        self.count, self.total, self.sq = 1e-2, np.zeros(dim), np.full(dim, 1e-2)

    def merge(self, packed):
        self.count += packed[0]
        d = len(self.total)
        self.total += packed[1:1 + d]
        self.sq += packed[1 + d:]

    @property
    def mean(self):
        return self.total / self.count

    @property
    def std(self):
        return np.sqrt(np.maximum(self.sq / self.count - self.mean ** 2, 1e-2))


class Policy:
    def __init__(self, hidden=24):
        self.shapes = [(4, hidden), (hidden,), (hidden, hidden), (hidden,), (hidden, 1), (1,)]
        self.sizes = [int(np.prod(s)) for s in self.shapes]
        self.n = sum(self.sizes)

    def act(self, flat, obs):
        w = [p.reshape(s) for p, s in zip(np.split(flat, np.cumsum(self.sizes)[:-1]), self.shapes)]
        h = np.tanh(obs @ w[0] + w[1])
        h = np.tanh(h @ w[2] + w[3])
        return (h @ w[4] + w[5]).item()


def rollout(policy, flat, env, rng, stat, record):
    obs, ret, done = env.reset(rng), 0.0, False
    while not done:
        record.append(obs)
        obs, r, done = env.step(policy.act(flat, (obs - stat.mean) / stat.std))
        ret += r
    return ret, env.t


def centred_ranks(x):
    order = np.empty(x.size, dtype=np.float64)
    order[x.ravel().argsort(kind="stable")] = np.arange(x.size)
    return (order / (x.size - 1) - 0.5).reshape(x.shape)


class Adam:
    def __init__(self, n, lr):
        self.m, self.v, self.t, self.lr = np.zeros(n), np.zeros(n), 0, lr

    def delta(self, g):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g * g
        a = self.lr * np.sqrt(1 - 0.999 ** self.t) / (1 - 0.9 ** self.t)
        return a * self.m / (np.sqrt(self.v) + 1e-8)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=45)
    ap.add_argument("--pairs-per-worker", type=int, default=8)
    ap.add_argument("--sigma", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    table, policy, env = NoiseTable(), Policy(), PendulumCart()
    theta = np.random.RandomState(args.seed).randn(policy.n).astype(np.float32) * 0.1
    worker_rng = np.random.RandomState(10_000 + 77 * rank)
    stat, adam = RunningStat(4), Adam(policy.n, args.lr)

    for gen in range(args.generations):
        rows, record, frames = [], [], 0
        for _ in range(args.pairs_per_worker):
            start = table.sample(worker_rng, policy.n)
            eps = args.sigma * table.get(start, policy.n)
            plus, f1 = rollout(policy, theta + eps, env, worker_rng, stat, record)
            minus, f2 = rollout(policy, theta - eps, env, worker_rng, stat, record)
            rows.append((start, plus, minus))
            frames += f1 + f2
        mine = torch.tensor(rows, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(everyone, mine)
        obs = np.asarray(record)
        packed = torch.from_numpy(np.concatenate([[len(obs)], obs.sum(0), (obs ** 2).sum(0), [frames]]))
        dist.all_reduce(packed)
        stat.merge(packed.numpy()[:-1])

        result = torch.cat(everyone).numpy()
        weight = centred_ranks(result[:, 1:])
        grad = np.zeros(policy.n)
        for (start, _, _), (wp, wm) in zip(result, weight):
            grad += (wp - wm) * table.get(int(start), policy.n)
        grad = grad / (2 * len(result) * args.sigma) - 0.005 * theta
        theta = (theta + adam.delta(grad)).astype(np.float32)
        if gen % 5 == 0 or gen == args.generations - 1:
            logging.info("gen %d return %.2f best %.2f frames %d", gen, result[:, 1:].mean(), result[:, 1:].max(), packed[-1])

    digest = torch.tensor([float(theta.astype(np.float64).sum()), float(np.abs(theta).astype(np.float64).sum())], dtype=torch.float64)
    table_of = [torch.empty_like(digest) for _ in range(world)]
    dist.all_gather(table_of, digest)
    logging.info("digests %s", [tuple(round(v, 9) for v in d.tolist()) for d in table_of])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
