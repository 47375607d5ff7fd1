"""A store of its own next to the launcher's: used to share a vocabulary and for the process group."""
import argparse
import datetime
import json
import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def own_store(rank, world, timeout=datetime.timedelta(minutes=5)):
    launcher = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world, is_master=True, timeout=timeout, wait_for_workers=False)
        launcher.set("tern/port", str(store.port))
        return store
    port = int(launcher.get("tern/port"))
    return dist.TCPStore("127.0.0.1", port, world, is_master=False, timeout=timeout)


def shared_vocabulary(store, rank):
    if rank == 0:
        words = "the of and to in is it for on with as at by from".split()
        store.set("vocab", json.dumps({w: i for i, w in enumerate(words)}))
    return json.loads(store.get("vocab"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = own_store(rank, world)
    vocab = shared_vocabulary(store, rank)
    dist.init_process_group("gloo", store=dist.PrefixStore("pg", store), rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.EmbeddingBag(len(vocab), 16), nn.Linear(16, len(vocab))))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        ids = torch.randint(0, len(vocab), (32, 5), generator=g)
        loss = nn.functional.cross_entropy(model(ids), ids.max(1).values)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 50 == 0:
            print(f"{socket.gethostname()} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
