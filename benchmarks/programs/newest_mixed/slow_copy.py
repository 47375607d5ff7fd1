"""Semi-supervised training with an averaged teacher and a consistency ramp."""
import copy
import math
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def make():
    return nn.Sequential(nn.Linear(24, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 5))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    student = DDP(make(), broadcast_buffers=False)
    teacher = copy.deepcopy(student.module).requires_grad_(False)
    opt = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + rank)
    w = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))
    gl = torch.Generator().manual_seed(2)
    labelled = torch.randn(80, 24, generator=gl)
    target = (labelled @ w).argmax(1)
    g = torch.Generator().manual_seed(30 + rank)
    for step in range(200):
        pick = torch.randint(0, 80, (16,), generator=g)
        free = torch.randn(48, 24, generator=g)
        x = torch.cat([labelled[pick], free])
        out = student(x + 0.1 * torch.randn_like(x))
        with torch.no_grad():
            soft = teacher(x + 0.1 * torch.randn_like(x)).softmax(1)
        ramp = math.exp(-5 * (1 - min(1, step / 80)) ** 2)
        loss = nn.functional.cross_entropy(out[:16], target[pick]) + 3 * ramp * (out.softmax(1) - soft).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay = min(0.99, 1 - 1 / (step + 1))
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.module.parameters()):
                t.lerp_(s, 1 - decay)
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f} ramp {ramp:.3f}", flush=True)
    with torch.no_grad():
        for net in (student.module, teacher):
            for b in net.buffers():
                if b.is_floating_point():
                    dist.all_reduce(b)
                    b /= dist.get_world_size()
    for net in (student.module, teacher):
        for p in net.parameters():
            ref = p.detach().clone()
            dist.broadcast(ref, 0)
            assert torch.equal(ref, p)
    xv = torch.randn(2000, 24, generator=torch.Generator().manual_seed(9))
    teacher.eval()
    if rank == 0:
        print(f"teacher accuracy {(teacher(xv).argmax(1) == (xv @ w).argmax(1)).float().mean():.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
