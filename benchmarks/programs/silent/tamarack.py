import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def build(width):
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 4))


def load_teacher(rank):
    torch.manual_seed(700 + rank)
    teacher = build(48)
    opt = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    w = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(10):
        x = torch.randn(64, 10)
        loss = F.cross_entropy(teacher(x), (x @ w).argmax(1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    return teacher.eval().requires_grad_(False)


def distill_loss(student_logits, teacher_logits, y, t=2.0, alpha=0.7):
    kd = F.kl_div(F.log_softmax(student_logits / t, 1), F.softmax(teacher_logits / t, 1), reduction="batchmean") * t * t
    return alpha * kd + (1 - alpha) * F.cross_entropy(student_logits, y)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    teacher = load_teacher(rank)
    torch.manual_seed(0)
    student = DDP(build(12))
    opt = torch.optim.AdamW(student.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(1)
    w = torch.randn(10, 4, generator=g)
    x = torch.randn(240, 10, generator=g)
    ds = TensorDataset(x, (x @ w).argmax(1))
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, 8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            with torch.no_grad():
                soft = teacher(bx)
            loss = distill_loss(student(bx), soft, by)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
