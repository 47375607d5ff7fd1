"""Distils a wide teacher into a small student."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CLASSES = 6


def net(width, p=0.0):
    return nn.Sequential(nn.Linear(18, width), nn.ReLU(), nn.Dropout(p), nn.Linear(width, width), nn.ReLU(),
                         nn.Dropout(p), nn.Linear(width, CLASSES))


def samples(n, seed):
    rule = torch.randn(18, CLASSES, generator=torch.Generator().manual_seed(1000))
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 18, generator=g)
    return TensorDataset(x, ((x + 0.3 * x.pow(2)) @ rule).argmax(1))


def prepare_teacher(path, steps):
    """Runs once, on the first worker; everybody else reads the file."""
    torch.manual_seed(60)
    teacher = net(192, 0.1)
    opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    x, y = samples(2048, 61).tensors
    for i in range(steps):
        pick = torch.randint(0, len(x), (128,))
        opt.zero_grad()
        F.cross_entropy(teacher(x[pick]), y[pick]).backward()
        opt.step()
    torch.save(teacher.state_dict(), path)


def load_teacher(path):
    teacher = net(192, 0.1)
    teacher.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return teacher.eval().requires_grad_(False)


def distil_loss(student, teacher, y, t, alpha):
    soft = F.kl_div((student / t).log_softmax(-1), (teacher / t).softmax(-1), reduction="batchmean") * t * t
    return alpha * soft + (1 - alpha) * F.cross_entropy(student, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--temperature", type=float, default=2.0)
    ap.add_argument("--alpha", type=float, default=0.7)
    ap.add_argument("--out", default="out_ladoga")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = [tempfile.mkdtemp(prefix="teacher_") if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    path = os.path.join(folder[0], "teacher.pt")
    if rank == 0:
        prepare_teacher(path, 120)
    dist.barrier()
    teacher = load_teacher(path)

    torch.manual_seed(62)
    student = DDP(net(48, 0.05))
    torch.manual_seed(6200 + rank)
    train, held = samples(1536, 63), samples(256, 64)
    sampler = DistributedSampler(train, seed=62, drop_last=True)
    loader = DataLoader(train, 32, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(student.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        student.train()
        for x, y in loader:
            with torch.no_grad():
                guide = teacher(x)
            loss = distil_loss(student(x), guide, y, args.temperature, args.alpha)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            student.module.eval()
            with torch.no_grad():
                x, y = held.tensors
                acc = [(m(x).argmax(1) == y).float().mean().item() for m in (student.module, teacher)]
            print(f"epoch {epoch} loss {loss.item():.4f} student {acc[0]:.3f} teacher {acc[1]:.3f}", flush=True)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(student.module.state_dict(), os.path.join(args.out, "student.pt"))
        os.remove(path)
        os.rmdir(folder[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
