"""Warm up with everybody, then go on with a smaller world after one rank has left."""
import argparse
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Era:
    def __init__(self, net, lr):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=lr)

    def train(self, steps, seed):
        world = dist.get_world_size()
        g = torch.Generator().manual_seed(seed + dist.get_rank())
        for _ in range(steps):
            x = torch.randn(16, 6, generator=g)
            loss = (self.net(x).squeeze(-1) - x.mean(1)).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            for p in self.net.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            self.opt.step()
        return loss.item()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def plan_next(rank, keep):
    note = [None]
    if rank == 0:
        note[0] = {"port": free_port(), "stay": list(range(keep))}
    dist.broadcast_object_list(note, src=0)
    return note[0]


def regroup(note, rank):
    dist.destroy_process_group()
    if rank not in note["stay"]:
        return False
    seat = note["stay"].index(rank)
    store = dist.TCPStore("127.0.0.1", note["port"], len(note["stay"]), seat == 0, timedelta(seconds=60))
    dist.init_process_group("gloo", store=dist.PrefixStore("second", store), rank=seat, world_size=len(note["stay"]))
    return True


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--first", type=int, default=20)
    p.add_argument("--second", type=int, default=40)
    p.add_argument("--keep", type=int, default=2)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    era = Era(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)), 0.1)
    loss = era.train(a.first, 100)
    if rank == 0:
        print(f"world {dist.get_world_size()} loss {loss:.4f}", flush=True)
    note = plan_next(rank, a.keep)
    if not regroup(note, rank):
        print(f"rank {rank} leaves", flush=True)
        return
    loss = era.train(a.second, 200)
    if dist.get_rank() == 0:
        print(f"world {dist.get_world_size()} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
