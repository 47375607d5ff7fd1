"""Asynchronous SGD for a click model: one server, the others push gradients through the store."""
import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn

from server import Client, Server


class ClickNet(nn.Module):
    def __init__(self, fields=5, card=50, dim=8):
        super().__init__()
        self.card = card
        self.emb = nn.Embedding(fields * card, dim)
        self.mlp = nn.Sequential(nn.Linear(fields * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        shift = torch.arange(ids.size(1)) * self.card
        return self.mlp(self.emb(ids + shift).flatten(1)).squeeze(1)


def stream(rank, steps, batch):
    g = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        ids = torch.randint(0, 50, (batch, 5), generator=g)
        yield ids, ((ids[:, 0] + ids[:, 1]) % 3 == 0).float()


def work(store, rank, args, log):
    net, client = ClickNet(), Client(store, rank)
    steps = args.steps * (1 + rank % 2)
    lag = []
    for i, (ids, y) in enumerate(stream(rank, steps, args.batch)):
        lag.append(client.pull(net))
        loss = nn.functional.binary_cross_entropy_with_logits(net(ids), y)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        client.push(list(grads))
        if i % 25 == 0:
            log.info("step %d loss %.4f at version %d", i, loss.item(), lag[-1])
    client.leave()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=128)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")
    log = logging.getLogger("clicks")
    store = dist.PrefixStore("ps", dist.distributed_c10d._get_default_store())
    torch.manual_seed(0)
    if rank == 0:
        net = ClickNet()
        opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
        Server(store, net, opt, range(1, world)).serve()
    else:
        work(store, rank, args, log)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
