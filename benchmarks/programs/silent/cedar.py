from torch.optim.swa_utils import SWALR, AveragedModel

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def evaluate(net, loader):
    net.eval()
    s = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            s += torch.tensor([(net(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(8, 32), nn.SyncBatchNorm(32) if torch.cuda.is_available() else nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))
    model = DDP(net)
    swa_net = AveragedModel(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=3)
    swa_sched = SWALR(opt, swa_lr=0.03, anneal_epochs=1)
    g = torch.Generator().manual_seed(4)
    x = torch.randn(352, 8, generator=g)
    y = (x @ torch.randn(8, 3, generator=g)).argmax(1)
    train, val = TensorDataset(x[:256], y[:256]), TensorDataset(x[256:], y[256:])
    sampler = DistributedSampler(train)
    loader = DataLoader(train, 16, sampler=sampler)
    val_loader = DataLoader(val, 16, sampler=DistributedSampler(val, shuffle=False))
    for epoch in range(6):
        sampler.set_epoch(epoch)
        model.train()
        for bx, by in loader:
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(model(bx), by).backward()
            opt.step()
        if epoch >= 3:
            swa_net.update_parameters(net)
            swa_sched.step()
        else:
            cosine.step()
    acc, swa_acc = evaluate(net, val_loader), evaluate(swa_net, val_loader)
    if dist.get_rank() == 0:
        print(f"last {acc:.3f} swa {swa_acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
