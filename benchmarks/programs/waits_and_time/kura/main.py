import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn

from buckets import GradientExchange
from sessions import ClickSessions

log = logging.getLogger("kura")


class NextItem(nn.Module):
    def __init__(self, items, dim, hidden):
        super().__init__()
        self.emb = nn.Embedding(items, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, items)

    def forward(self, clicks):
        h, _ = self.rnn(self.emb(clicks))
        return self.out(self.norm(h[:, -1]))


def hit_rate(model, clicks, target, k=20):
    with torch.no_grad():
        top = model(clicks).topk(k, -1).indices
        hits = (top == target[:, None]).any(-1).float().sum()
    t = torch.stack([hits, torch.tensor(float(len(target)))])
    dist.all_reduce(t)
    return (t[0] / t[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--items", type=int, default=30000)
    ap.add_argument("--dim", type=int, default=24)
    ap.add_argument("--hidden", type=int, default=64)
    ap.add_argument("--sessions", type=int, default=2400)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--epochs", type=int, default=1)
    ap.add_argument("--lr", type=float, default=0.3)
    ap.add_argument("--bucket-mb", type=float, default=1.0)
    ap.add_argument("--seed", type=int, default=52)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"{rank}: %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    model = NextItem(args.items, args.dim, args.hidden)
    exchange = GradientExchange(model, world, args.bucket_mb)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = ClickSessions(args.sessions, args.items, args.seed)
    train, held = data.split(rank, world)
    if rank == 0:
        log.info("%d buckets: %s", len(exchange.buckets), [b.numel for b in exchange.buckets])

    for epoch in range(args.epochs):
        began, losses = time.time(), []
        for clicks, target in train.batches(args.batch, epoch):
            loss = nn.functional.cross_entropy(model(clicks), target)
            opt.zero_grad(set_to_none=False)
            loss.backward()
            exchange.launch()
            norm = sum(float(p.detach().norm()) for p in model.out.parameters())
            losses.append(loss.item())
            exchange.finish()
            opt.step()
            if rank == 0 and len(losses) % 12 == 0:
                log.info("epoch %d batch %d loss %.3f head norm %.2f", epoch, len(losses), loss.item(), norm)
        rate = hit_rate(model, held.clicks, held.target)
        if rank == 0:
            log.info("epoch %d loss %.3f hit@20 %.4f %.1fs", epoch, sum(losses) / len(losses), rate, time.time() - began)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
