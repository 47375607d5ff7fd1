import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class TwoTower(nn.Module):
    def __init__(self, users, items, dim=64, hidden=256):
        super().__init__()
        self.user_emb = nn.Embedding(users, dim)
        self.item_emb = nn.Embedding(items, dim)
        self.user_mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.item_mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, user, item):
        u = F.normalize(self.user_mlp(self.user_emb(user)), dim=-1)
        v = F.normalize(self.item_mlp(self.item_emb(item)), dim=-1)
        return self.scale * u @ v.t()


class Interactions(Dataset):
    def __init__(self, n, users, items, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.user = torch.randint(0, users, (n,), generator=g)
        self.item = (self.user * 7 + torch.randint(0, 20, (n,), generator=g)) % items

    def __len__(self):
        return len(self.user)

    def __getitems__(self, index):
        index = torch.as_tensor(index)
        return self.user[index], self.item[index]


def train_epoch(model, loader, optimizer, scheduler, args, epoch, rank):
    model.train()
    window, seen, t0 = torch.zeros(()), 0, time.time()
    for i, (user, item) in enumerate(loader):
        logits = model(user, item)
        target = torch.arange(len(user))
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
        (loss / args.accumulate).backward()
        window += loss.detach()
        seen += len(user)
        if (i + 1) % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            update = (i + 1) // args.accumulate
            if update % args.log_every == 0 and rank == 0:
                rate = seen / (time.time() - t0)
                print(f"epoch {epoch} update {update} loss {window.item() / (args.log_every * args.accumulate):.4f} "
                      f"{rate:.0f} samples/s", flush=True)
            if update % args.log_every == 0:
                window.zero_()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--users", type=int, default=40000)
    ap.add_argument("--items", type=int, default=20000)
    ap.add_argument("--interactions", type=int, default=131072)
    ap.add_argument("--batch-size", type=int, default=512)
    ap.add_argument("--accumulate", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.5)
    ap.add_argument("--log-every", type=int, default=4)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(42)
    model = DDP(TwoTower(args.users, args.items), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 32)
    data = Interactions(args.interactions, args.users, args.items)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, collate_fn=lambda pair: pair, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer, scheduler, args, epoch, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
