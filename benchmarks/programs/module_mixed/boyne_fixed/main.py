import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from records import VisitDataset, load_records
from splits import split

EPOCHS, BATCH, STEPS = 3, 16, 9


def loaders():
    train, valid = split(load_records())
    t, v = VisitDataset(train), VisitDataset(valid)
    ts = DistributedSampler(t, shuffle=True, seed=8, drop_last=True)
    vs = DistributedSampler(v, shuffle=False)
    return DataLoader(t, batch_size=BATCH, sampler=ts, drop_last=True), DataLoader(v, batch_size=BATCH, sampler=vs), ts


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    stats = torch.zeros(2)
    for x, y, _ in loader:
        pred = (model.module(x).squeeze(-1) > 0).float()
        stats += torch.tensor([(pred == y).sum().item(), len(y)])
    dist.all_reduce(stats)
    model.train()
    return (stats[0] / stats[1]).item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 1))
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    train_loader, valid_loader, sampler = loaders()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for step, (x, y, _) in zip(range(STEPS), train_loader):
            loss = F.binary_cross_entropy_with_logits(model(x).squeeze(-1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        acc = evaluate(model, valid_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} valid acc {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
