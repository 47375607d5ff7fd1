import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from shop.orders import CATEGORIES, CHANNELS, Orders, encode, make_orders
from shop.session import session


class ReturnModel(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        pad = len(CATEGORIES)
        self.item = nn.Embedding(pad + 1, dim, padding_idx=pad)
        self.channel = nn.Embedding(len(CHANNELS), dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, items, channel):
        h, _ = self.rnn(self.item(items))
        return self.mlp(torch.cat([h.mean(1), self.channel(channel)], dim=1)).squeeze(1)


def train(args, events):
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    data = Orders(make_orders())
    sampler = DistributedSampler(data, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, collate_fn=encode, drop_last=True)
    model = DDP(ReturnModel())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for items, channel, label in loader:
            loss = F.binary_cross_entropy_with_logits(model(items, channel), label)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        events.add(epoch=epoch, loss=(total[0] / total[1]).item())
        if rank == 0:
            print(f"epoch {epoch} loss {total[0] / total[1]:.4f}", flush=True)
            torch.save(model.module.state_dict(), args.model)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=60)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--model", default="returns.pt")
    p.add_argument("--events", default="events.jsonl")
    args = p.parse_args()
    with session(args.events) as events:
        train(args, events)


if __name__ == "__main__":
    main()
