import types

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

hp = types.SimpleNamespace(epochs=6, swa_start=3, lr=0.05, swa_lr=0.02, bs=32)


class TextCNN(nn.Module):
    def __init__(self, vocab=120, d=32, classes=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.conv = nn.Conv1d(d, 48, 3, padding=1)
        self.bn = nn.BatchNorm1d(48)
        self.out = nn.Linear(48, classes)

    def forward(self, t):
        h = torch.relu(self.bn(self.conv(self.emb(t).transpose(1, 2))))
        return self.out(h.amax(-1))


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.randint(3, 120, (n, 24), generator=g)
    y = torch.randint(0, 3, (n,), generator=g)
    t[torch.arange(n), torch.randint(0, 24, (n,), generator=g)] = y
    return TensorDataset(t, y)


def average_buffers(module):
    for b in module.buffers():
        if b.is_floating_point():
            dist.all_reduce(b)
            b /= dist.get_world_size()


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    c = torch.zeros(2)
    for t, y in loader:
        c += torch.tensor([(model(t).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(c)
    return (c[0] / c[1]).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = DDP(TextCNN())
    averaged = AveragedModel(model.module)
    opt = torch.optim.SGD(model.parameters(), hp.lr, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, hp.swa_start)
    swa = SWALR(opt, swa_lr=hp.swa_lr, anneal_epochs=1)
    train, val = make(640, 0), make(160, 1)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, hp.bs, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val, hp.bs, sampler=DistributedSampler(val, shuffle=False))
    for epoch in range(hp.epochs):
        model.train()
        sampler.set_epoch(epoch)
        for t, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(model(t), y).backward()
            opt.step()
        if epoch >= hp.swa_start:
            averaged.update_parameters(model.module)
            swa.step()
        else:
            cosine.step()
        if rank == 0:
            print(f"epoch {epoch} lr {opt.param_groups[0]['lr']:.4f}", flush=True)
    update_bn(loader, averaged)
    average_buffers(averaged)
    acc = accuracy(averaged, val_loader)
    if rank == 0:
        print(f"swa accuracy {acc:.3f}", flush=True)
        torch.save(averaged.module.state_dict(), "swa.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
