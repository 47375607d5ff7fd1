"""Digit-like glyphs, a small perceptron and a rank 0 that also feeds a dashboard."""
import argparse
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from status import StatusFeed, preview


def glyphs(count, seed):
    shapes = (torch.rand(10, 144, generator=torch.Generator().manual_seed(77)) > 0.6).float()
    gen = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 10, (count,), generator=gen)
    keep = (torch.rand(count, 144, generator=gen) > 0.25).float()
    return TensorDataset(shapes[kind] * keep + 0.3 * torch.randn(count, 144, generator=gen), kind)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--count", type=int, default=4800)
    parser.add_argument("--batch", type=int, default=30)
    parser.add_argument("--dashboard", default="127.0.0.1:9")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    train, test = glyphs(args.count, 1), glyphs(900, 2)
    sampler = DistributedSampler(train, seed=3)
    loader = DataLoader(train, args.batch, sampler=sampler)
    x, y = (t[rank::world] for t in test.tensors)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(144, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    feed, pool, drawing = None, None, None
    if rank == 0:
        host, port = args.dashboard.split(":")
        feed = StatusFeed(host, int(port))
        feed.start()
        pool = ThreadPoolExecutor(1, thread_name_prefix="preview")

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (glyph, kind) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(glyph), kind)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if feed is not None:
                feed.post(epoch=epoch, step=step, loss=loss.item())
        if pool is not None:
            if drawing is not None and drawing.done() and drawing.exception() is None:
                print(drawing.result(), flush=True)
            layer = model.module[0 if epoch % 2 else 4]
            drawing = pool.submit(preview, layer.weight.detach().clone(), 72)
        with torch.no_grad():
            counts = torch.tensor([(model.module(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float32)
        dist.all_reduce(counts)
        if rank == 0:
            print(f"epoch {epoch} accuracy {(counts[0] / counts[1]).item():.3f}", flush=True)
    if pool is not None:
        pool.shutdown(wait=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
