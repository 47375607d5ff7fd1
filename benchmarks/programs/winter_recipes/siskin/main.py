import argparse
import json
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import nets
from tracking import Tracker


class Shapes(Dataset):
    def __init__(self, n=3200, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(10, (n,), generator=g)
        self.seeds = torch.randint(1 << 30, (n,), generator=g)
        self.proto = torch.randn(10, 3, 28, 28, generator=torch.Generator().manual_seed(6))

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(int(self.seeds[i]))
        return self.proto[self.y[i]] + 2.0 * torch.randn(3, 28, 28, generator=g), self.y[i]


class Distiller:
    def __init__(self, student, teacher, temperature=3.0, alpha=0.7):
        self.student, self.teacher = student, teacher
        self.T, self.alpha = temperature, alpha

    def losses(self, x, y):
        s_logits = self.student(x)
        with torch.no_grad():
            t_logits = self.teacher(x)
        ce = F.cross_entropy(s_logits, y)
        kd = F.kl_div(
            F.log_softmax(s_logits / self.T, -1),
            F.softmax(t_logits.detach() / self.T, -1),
            reduction="batchmean",
        ) * self.T ** 2
        agreement = F.cosine_similarity(s_logits.detach(), t_logits, dim=-1).mean()
        return (1 - self.alpha) * ce + self.alpha * kd, agreement


def warm_teacher(net, data, steps, rank):
    """A few supervised steps in place of a downloaded teacher; rank 0 trains, everyone gets a copy."""
    if rank == 0:
        opt = torch.optim.Adam(net.parameters(), lr=2e-3)
        for x, y in DataLoader(data, 32, shuffle=True):
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
            steps -= 1
            if steps == 0:
                break
        opt.zero_grad()
    for t in net.state_dict().values():
        dist.broadcast(t, 0)
    return net.eval()


def main():
    p = argparse.ArgumentParser("knowledge distillation")
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--teacher-steps", type=int, default=12)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"kd-{os.environ.get('MASTER_PORT', 0)}"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    data = Shapes()
    teacher = warm_teacher(nets.teacher(), data, args.teacher_steps, rank)
    student = DDP(nets.student())
    distiller = Distiller(student, teacher)
    optimizer = torch.optim.SGD(student.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    tracker = Tracker() if rank == 0 else None
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss, agreement = distiller.losses(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if tracker is not None:
                tracker.update(loss=loss.detach(), agreement=agreement)
                if step % 10 == 0:
                    tracker.report(step)
            step += 1
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(student.module.state_dict(), os.path.join(args.out, "student.pt"))
        with open(os.path.join(args.out, "curves.json"), "w") as f:
            json.dump(tracker.summary(), f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
