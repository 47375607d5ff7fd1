import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from net import DropBlocks

log = logging.getLogger("alarms")


class Alarms(Dataset):
    """Sensor windows with a class each; some windows were recorded while the sensor was off (NaN)."""

    def __init__(self, n, seed, dead=()):
        g = torch.Generator().manual_seed(seed)
        centers = torch.randn(12, 60, generator=torch.Generator().manual_seed(77))
        self.y = torch.randint(0, 12, (n,), generator=g)
        self.x = centers[self.y] + 1.6 * torch.randn(n, 60, generator=g)
        for lo, hi in dead:
            self.x[lo:hi] = float("nan")

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def usable_everywhere(x):
    ok = torch.isfinite(x).all().int()
    dist.all_reduce(ok, op=dist.ReduceOp.MIN)
    return bool(ok.item())


def run_epoch(model, loader, opt):
    model.train()
    stats, skipped = torch.zeros(2), 0
    for x, y in loader:
        if not usable_everywhere(x):
            skipped += 1
            continue
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        stats += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(stats)
    return (stats[0] / stats[1]).item(), skipped


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    counts = torch.zeros(2)
    for x, y in loader:
        counts += torch.tensor([(net(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--patience", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=5e-4)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)

    train, valid = Alarms(6144, seed=1, dead=[(900, 903), (4000, 4002)]), Alarms(1024, seed=2)
    sampler = DistributedSampler(train, seed=9, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(valid, 128, sampler=DistributedSampler(valid, shuffle=False))
    torch.manual_seed(4)
    model = DDP(DropBlocks(60, 12, seed=4), find_unused_parameters=True)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

    best, stale = 0.0, 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss, skipped = run_epoch(model, loader, opt)
        acc = evaluate(model.module, val_loader)
        log.info("epoch %d loss %.4f acc %.4f skipped %d", epoch, loss, acc, skipped)
        if acc > best:
            best, stale = acc, 0
            if rank == 0:
                torch.save(model.module.state_dict(), "alarms_best.pt")
        else:
            stale += 1
        if stale >= args.patience:
            log.info("no better for %d epochs, leaving", stale)
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
