"""Two teachers distil into two students; the pairs work at their own pace."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn


class Role:
    def __init__(self, name, ranks, group, steps):
        self.name, self.ranks, self.group, self.steps = name, ranks, group, steps


def build_roles(teacher_steps, student_steps):
    """Every process makes both groups and keeps the one it works in."""
    layout = {"teacher": ([0, 1], teacher_steps), "student": ([2, 3], student_steps)}
    mine = None
    for name, (ranks, steps) in layout.items():
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = Role(name, ranks, group, steps)
    return mine


def reduce_mean(tensors, group=None):
    size = dist.get_world_size(group)
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
        tensor.div_(size)


class ClippedSGD:
    def __init__(self, parameters, lr, limit, group):
        self.parameters, self.limit, self.group = list(parameters), limit, group
        self.opt = torch.optim.SGD(self.parameters, lr=lr, momentum=0.9)

    def zero_grad(self):
        self.opt.zero_grad()

    def step(self):
        reduce_mean([p.grad for p in self.parameters], self.group)
        nn.utils.clip_grad_norm_(self.parameters, self.limit)
        self.opt.step()


class Scorer:
    def __init__(self, role):
        self.role, self.window = role, []

    def add(self, loss):
        self.window.append(loss.detach())

    def flush(self):
        mean = torch.stack(self.window).mean()
        reduce_mean([mean], self.role.group)
        self.window.clear()
        return mean.item()


def network(role):
    torch.manual_seed(len(role.name))
    width = 64 if role.name == "teacher" else 16
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 8))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--teacher-steps", type=int, default=60)
    parser.add_argument("--student-steps", type=int, default=90)
    parser.add_argument("--window", type=int, default=10)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    role = build_roles(args.teacher_steps, args.student_steps)
    model = network(role)
    opt = ClippedSGD(model.parameters(), 0.02, 1.0, role.group)
    scorer = Scorer(role)
    for step in range(1, role.steps + 1):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(rank * 1000 + step))
        opt.zero_grad()
        loss = (model(x) - x.sort(dim=1).values).square().mean()
        loss.backward()
        opt.step()
        scorer.add(loss)
        if step % args.window == 0:
            score = scorer.flush()
            if rank == role.ranks[0]:
                print(f"{role.name} step {step} loss {score:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
