import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch-size", type=int, default=25)
    ap.add_argument("--stages", type=int, nargs="+", default=[200, 300, 410], help="samples used in each curriculum stage")
    ap.add_argument("--epochs-per-stage", type=int, default=2)
    return ap.parse_args()


def corpus(n):
    g = torch.Generator().manual_seed(9)
    ids = torch.randint(0, 40, (n, 8), generator=g)
    return TensorDataset(ids, (ids < 20).float().mean(1))


class Embedder:
    """First half of the model."""

    def __init__(self, args):
        self.args = args
        self.net = nn.Sequential(nn.EmbeddingBag(40, 16), nn.LayerNorm(16))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=5e-3)

    def epoch(self, data):
        for ids, y in DataLoader(data, batch_size=self.args.batch_size):
            h = self.net(ids)
            dist.send(torch.tensor([len(h)]), 1)
            dist.send(h.detach(), 1)
            dist.send(y, 1)
            grad = torch.empty_like(h)
            dist.recv(grad, 1)
            self.opt.zero_grad()
            h.backward(grad)
            self.opt.step()


class Regressor:
    """Second half of the model with the loss."""

    def __init__(self, args):
        self.args = args
        self.net = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=5e-3)

    def epoch(self, data):
        loss, steps = 0.0, -(-len(data) // self.args.batch_size)
        for _ in range(steps):
            n = torch.zeros(1, dtype=torch.long)
            dist.recv(n, 0)
            h, y = torch.empty(int(n), 16), torch.empty(int(n))
            dist.recv(h, 0)
            dist.recv(y, 0)
            h.requires_grad_()
            out = nn.functional.mse_loss(self.net(h).squeeze(1), y)
            self.opt.zero_grad()
            out.backward()
            self.opt.step()
            dist.send(h.grad, 0)
            loss += out.item()
        logging.info("mean loss %.5f in %d steps", loss / steps, steps)


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(message)s")
    torch.manual_seed(rank)
    part = Embedder(args) if rank == 0 else Regressor(args)
    for n in args.stages:
        data = corpus(n)
        for _ in range(args.epochs_per_stage):
            part.epoch(data)
            dist.barrier()
        if rank == 0:
            logging.info("stage with %d samples finished", n)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
