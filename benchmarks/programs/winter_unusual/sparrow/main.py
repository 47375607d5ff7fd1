"""Second-order MAML on sinusoid regression; the meta batch of tasks is divided over the ranks."""
import argparse
import logging
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

log = logging.getLogger("sparrow")


class SineTasks:
    def __init__(self, shots, queries, seed):
        self.shots, self.queries = shots, queries
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self, n):
        amp = torch.rand(n, 1, 1, generator=self.gen) * 4.9 + 0.1
        phase = torch.rand(n, 1, 1, generator=self.gen) * math.pi
        x = torch.rand(n, self.shots + self.queries, 1, generator=self.gen) * 10 - 5
        y = amp * torch.sin(x + phase)
        return (x[:, : self.shots], y[:, : self.shots]), (x[:, self.shots :], y[:, self.shots :])


class MetaLearner:
    def __init__(self, net, inner_steps):
        self.net, self.inner_steps = net, inner_steps
        self.names = [n for n, _ in net.named_parameters()]
        # Meta-SGD: one learned step size per parameter tensor
        self.steps = nn.ParameterDict({n.replace(".", "_"): nn.Parameter(torch.tensor(0.02)) for n in self.names})

    def parameters(self):
        return list(self.net.parameters()) + list(self.steps.parameters())

    def _loss(self, weights, x, y):
        return F.mse_loss(functional_call(self.net, weights, (x,)), y)

    def adapted_loss(self, weights, rates, sx, sy, qx, qy):
        for _ in range(self.inner_steps):
            g = grad(self._loss)(weights, sx, sy)
            weights = {n: w - rates[n] * g[n] for n, w in weights.items()}
        return self._loss(weights, qx, qy)

    def __call__(self, support, query):
        weights = dict(self.net.named_parameters())
        rates = {n: self.steps[n.replace(".", "_")] for n in self.names}
        per_task = vmap(self.adapted_loss, in_dims=(None, None, 0, 0, 0, 0))
        return per_task(weights, rates, *support, *query)


class GradBucket:
    """Gradients as views of one flat tensor: a single collective per meta step."""

    def __init__(self, params):
        self.flat = torch.zeros(sum(p.numel() for p in params))
        i = 0
        for p in params:
            p.grad = self.flat[i : i + p.numel()].view_as(p)
            i += p.numel()

    def zero(self):
        self.flat.zero_()

    def average(self):
        dist.all_reduce(self.flat, op=dist.ReduceOp.AVG)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--meta-steps", type=int, default=200)
    ap.add_argument("--meta-batch", type=int, default=24)
    ap.add_argument("--shots", type=int, default=10)
    ap.add_argument("--inner-steps", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    learner = MetaLearner(net, args.inner_steps)
    params = learner.parameters()
    opt = torch.optim.Adam(params, lr=args.lr)
    bucket = GradBucket(params)
    tasks = SineTasks(args.shots, 15, seed=1000 + rank)
    assert args.meta_batch % world == 0

    running, n = torch.zeros(()), 0
    for step in range(args.meta_steps):
        losses = learner(*tasks.sample(args.meta_batch // world))
        bucket.zero()
        losses.mean().backward()
        bucket.average()
        opt.step()
        running += losses.detach().mean()
        n += 1
        if (step + 1) % 50 == 0:
            log.info("meta step %d adapted query mse %.4f", step + 1, running.item() / n)
            running.zero_()
            n = 0

    held = SineTasks(args.shots, 15, seed=77_000 + rank)
    with torch.no_grad():
        score = learner(*held.sample(200)).mean()
    dist.all_reduce(score, op=dist.ReduceOp.AVG)
    log.info("held-out tasks: mse after adaptation %.4f over %d tasks", score.item(), 200 * world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
