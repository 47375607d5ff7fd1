import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


class SineTasks:
    def __init__(self, seed):
        self.seed = seed

    def sample(self, index, shots, queries):
        g = torch.Generator().manual_seed(self.seed * 100003 + index)
        amp = 0.5 + 2.0 * torch.rand(1, generator=g)
        phase = math.pi * torch.rand(1, generator=g)
        x = torch.rand(shots + queries, 1, generator=g) * 8 - 4
        y = amp * torch.sin(x + phase)
        return (x[:shots], y[:shots]), (x[shots:], y[shots:])


class Regressor(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


class MetaLearner(nn.Module):
    """MAML with a learned step size per parameter tensor."""

    def __init__(self, args):
        super().__init__()
        self.model = Regressor()
        self.names = [n for n, _ in self.model.named_parameters()]
        self.log_lr = nn.ParameterDict({n.replace(".", "_"): nn.Parameter(torch.tensor(math.log(args.inner_lr)))
                                        for n in self.names})
        self.args = args

    def adapt(self, support, steps, create_graph):
        x, y = support
        fast = dict(self.model.named_parameters())
        for _ in range(steps):
            loss = F.mse_loss(functional_call(self.model, fast, (x,)), y)
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=create_graph)
            fast = {n: p - self.log_lr[n.replace(".", "_")].exp() * g
                    for (n, p), g in zip(fast.items(), grads)}
        return fast

    def task_loss(self, support, query, create_graph=True):
        fast = self.adapt(support, self.args.inner_steps, create_graph)
        return F.mse_loss(functional_call(self.model, fast, (query[0],)), query[1])


def sync_grads(params, count):
    """Sums of per-task gradients over all processes, divided by the tasks of the whole meta-batch."""
    flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in params]
                     + [torch.tensor([float(count)])])
    dist.all_reduce(flat)
    total = flat[-1].item()
    at = 0
    for p in params:
        p.grad = (flat[at : at + p.numel()] / total).view_as(p).clone()
        at += p.numel()
    return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--meta-steps", type=int, default=60)
    ap.add_argument("--meta-batch", type=int, default=7)
    ap.add_argument("--shots", type=int, default=10)
    ap.add_argument("--queries", type=int, default=15)
    ap.add_argument("--inner-steps", type=int, default=2)
    ap.add_argument("--inner-lr", type=float, default=0.03)
    ap.add_argument("--meta-lr", type=float, default=4e-3)
    ap.add_argument("--eval-every", type=int, default=20)
    ap.add_argument("--eval-tasks", type=int, default=15)
    ap.add_argument("--seed", type=int, default=7)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    learner = MetaLearner(args)
    params = list(learner.parameters())
    opt = torch.optim.Adam(params, lr=args.meta_lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.meta_steps, eta_min=2e-4)
    tasks, held = SineTasks(args.seed), SineTasks(args.seed + 1)

    for step in range(args.meta_steps):
        first = step * args.meta_batch
        mine = range(first + (rank + step) % world, first + args.meta_batch, world)
        opt.zero_grad(set_to_none=True)
        loss_sum = 0.0
        for index in mine:
            loss = learner.task_loss(*tasks.sample(index, args.shots, args.queries))
            loss.backward()
            loss_sum += loss.item()
        total = sync_grads(params, len(mine))
        nn.utils.clip_grad_norm_(params, 5.0)
        opt.step()
        sched.step()
        if (step + 1) % args.eval_every == 0:
            stat = torch.zeros(2)
            for index in range(rank, args.eval_tasks, world):
                stat += torch.tensor([learner.task_loss(*held.sample(index, args.shots, 30), create_graph=False).item(), 1.0])
            dist.all_reduce(stat)
            mean = torch.tensor(loss_sum)
            dist.all_reduce(mean)
            if rank == 0:
                print(f"meta step {step + 1} tasks {int(total)} loss {mean.item() / total:.4f} "
                      f"held-out after adaptation {stat[0] / stat[1]:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
