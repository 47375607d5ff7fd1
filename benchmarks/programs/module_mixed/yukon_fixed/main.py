import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pseudo import Teacher, dev_loss

ROUNDS, STEPS, BATCH = 6, 5, 24


def blobs(n, noise, seed):
    g = torch.Generator().manual_seed(seed)
    centre = 1.4 * torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 6, (n,), generator=g)
    return TensorDataset(centre[y] + noise * torch.randn(n, 10, generator=g), y)


def loader(ds, batch, shuffle):
    return DataLoader(ds, batch_size=batch, sampler=DistributedSampler(ds, shuffle=shuffle, seed=5), drop_last=shuffle)


def forever(dl):
    epoch = 0
    while True:
        dl.sampler.set_epoch(epoch)
        yield from dl
        epoch += 1


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, x):
        return self.net(x)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(21)
    student = Student()
    model = DDP(student)
    teacher = Teacher(student)
    opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.8)
    labelled = forever(loader(blobs(96, 1.3, 1), 8, True))
    pool = forever(loader(blobs(960, 1.3, 2), BATCH, True))
    dev = loader(blobs(48, 1.3, 3), 24, False)
    for r in range(ROUNDS):
        for _ in range(STEPS):
            x, y = next(labelled)
            u, _ = next(pool)
            hard, keep = teacher.label(u)
            out = model(torch.cat([x, u]))
            sup = F.cross_entropy(out[:len(x)], y)
            unsup = (F.cross_entropy(out[len(x):], hard, reduction="none") * keep).mean()
            loss = sup + 0.5 * unsup
            opt.zero_grad()
            loss.backward()
            opt.step()
        teacher.maybe_renew(student, dev_loss(student, dev))
        if dist.get_rank() == 0:
            print(f"round {r} loss {loss.item():.4f} kept {keep.mean():.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
