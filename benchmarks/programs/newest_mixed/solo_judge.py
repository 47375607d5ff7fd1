"""mp.spawn training; process 0 scores the full validation set between epochs and decides when to stop."""
import os
import socket
import time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def score(net, x, y):
    net.eval()
    hits = 0
    with torch.no_grad():
        for xb, yb in zip(x.split(100), y.split(100)):
            hits += (net(xb).argmax(1) == yb).sum().item()
            time.sleep(0.05)
    net.train()
    return hits / len(x)


def run(rank, world, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 4)))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    w = torch.randn(20, 4, generator=torch.Generator().manual_seed(2))
    xv = torch.randn(3000, 20, generator=torch.Generator().manual_seed(3))
    yv = (xv @ w).argmax(1)
    g = torch.Generator().manual_seed(4 + rank)
    best, stale = 0.0, 0
    for epoch in range(8):
        for _ in range(25):
            x = torch.randn(32, 20, generator=g)
            loss = nn.functional.cross_entropy(net(x), (x @ w).argmax(1))
            opt.zero_grad()
            loss.backward()
            opt.step()
        verdict = [None]
        if rank == 0:
            acc = score(net.module, xv, yv)
            stale = 0 if acc > best + 0.002 else stale + 1
            if acc > best:
                best = acc
                torch.save(net.module.state_dict(), "best.pt")
            verdict = [stale >= 2]
            print(f"epoch {epoch} loss {loss.item():.4f} val {acc:.4f}", flush=True)
        dist.broadcast_object_list(verdict, src=0)
        if verdict[0]:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(run, args=(2, port), nprocs=2)
