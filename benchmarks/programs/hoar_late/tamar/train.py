"""Three-stage pipeline: training on full batches, validation after every epoch."""
import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def send_tensor(t, dst):
    dist.send(torch.tensor(t.shape), dst)
    dist.send(t.detach().contiguous(), dst)


def recv_tensor(src, ndim=2):
    shape = torch.zeros(ndim, dtype=torch.long)
    dist.recv(shape, src)
    t = torch.empty(*shape.tolist())
    dist.recv(t, src)
    return t


def synthetic(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=g)
    y = torch.tanh(x[:, :1] * 2 - x[:, 1:2])
    return TensorDataset(x, y)


def get_loaders(bs):
    train = DataLoader(synthetic(160, 0), batch_size=bs, shuffle=False, drop_last=True)
    val = DataLoader(synthetic(72, 1), batch_size=bs, shuffle=False)
    return train, val


def num_batches(loader):
    return math.ceil(len(loader.dataset) / loader.batch_size)


def train_epoch(rank, last, stage, opt, loader):
    it = iter(loader)
    for _ in range(num_batches(loader)):
        if rank == 0:
            x, _y = next(it)
            inp = x
        else:
            inp = recv_tensor(rank - 1).requires_grad_()
        out = stage(inp)
        opt.zero_grad()
        if rank == last:
            _x, y = next(it)
            nn.functional.mse_loss(out, y).backward()
        else:
            send_tensor(out, rank + 1)
            out.backward(recv_tensor(rank + 1))
        if rank > 0:
            send_tensor(inp.grad, rank - 1)
        opt.step()


@torch.no_grad()
def validate(rank, last, stage, loader):
    total = torch.zeros(2)
    if rank == 0:
        for x, _ in loader:
            send_tensor(stage(x), 1)
    else:
        targets = loader.dataset.tensors[1].split(loader.batch_size)
        for i in range(num_batches(loader)):
            out = stage(recv_tensor(rank - 1))
            if rank == last:
                total += torch.tensor([(out - targets[i]).pow(2).sum(), float(len(out))])
            else:
                send_tensor(out, rank + 1)
    dist.broadcast(total, src=last)
    return (total[0] / total[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group(backend="gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(rank)
    sizes = [(16, 32), (32, 32), (32, 1)]
    stage = nn.Linear(*sizes[rank]) if rank == last else nn.Sequential(nn.Linear(*sizes[rank]), nn.Tanh())
    opt = torch.optim.SGD(stage.parameters(), lr=0.05)
    train_loader, val_loader = get_loaders(args.batch_size)
    for epoch in range(args.epochs):
        train_epoch(rank, last, stage, opt, train_loader)
        if rank == 0:
            print(f"epoch {epoch}: training pass done", flush=True)
        val = validate(rank, last, stage, val_loader)
        if rank == 0:
            print(f"epoch {epoch}: val mse {val:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
