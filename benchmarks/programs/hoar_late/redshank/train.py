import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn

from rpc import Client, Server


class EmbeddingTable:
    """Sparse table that lives on the server, updated with plain SGD."""

    def __init__(self, rows, dim, lr):
        g = torch.Generator().manual_seed(0)
        self.weight = torch.randn(rows, dim, generator=g) * 0.1
        self.lr = lr

    def pull(self, ids):
        return {"rows": self.weight[ids]}

    def push(self, ids, grads):
        self.weight.index_add_(0, ids, grads, alpha=-self.lr)
        return {"ok": True}


def make_batches(rank, steps, batch, vocab):
    g = torch.Generator().manual_seed(100 + rank)
    for step in range(steps):
        ids = torch.randint(0, vocab, (batch, 6), generator=g)
        if rank == 2 and step == 17:
            ids[0, 3] = vocab + 5
        y = (ids.sum(1) % 2).float()
        yield ids, y


def work(args, rank):
    client = Client()
    tower = nn.Sequential(nn.Linear(args.dim, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(tower.parameters(), lr=1e-3)
    rejected, last = 0, 0.0
    for step, (ids, y) in enumerate(make_batches(rank, args.steps, args.batch, args.vocab)):
        reply = client.call("pull", ids=ids.flatten())
        if "error" in reply:
            rejected += 1
            continue
        rows = reply["rows"].requires_grad_()
        pooled = rows.view(args.batch, 6, args.dim).mean(1)
        loss = nn.functional.binary_cross_entropy_with_logits(tower(pooled).squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        client.call("push", ids=ids.flatten(), grads=rows.grad)
        last = loss.item()
        if step % 10 == 0:
            print(f"[worker {rank}] step {step} loss {last:.4f}", flush=True)
    client.close()
    return last, rejected


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--vocab", type=int, default=500)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    if rank == 0:
        table = EmbeddingTable(args.vocab, args.dim, lr=0.1)
        served = Server({"pull": table.pull, "push": table.push}, range(1, world)).run()
        print("requests served:", served)
    else:
        last, rejected = work(args, rank)
        print(f"worker {rank} done, loss {last:.4f}, rejected {rejected}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
