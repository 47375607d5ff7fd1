import argparse

import torch
import torch.distributed as dist

from parties import LabelOwner, Party


def customers(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 18, generator=g)
    y = ((x[:, :9].sum(1) * 0.5 + x[:, 9] * x[:, 10] * 2) > 0).float()
    return x, y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=90)
    p.add_argument("--batch", type=int, default=64)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = customers(1024)
    owners = list(range(1, world))
    columns = 18 // len(owners)
    order = torch.Generator().manual_seed(123)
    if rank == 0:
        me = LabelOwner(owners, a.batch, seed=5)
    else:
        mine = x[:, (rank - 1) * columns:rank * columns]
        me = Party(rank, columns, a.batch, seed=5)
    for r in range(a.rounds):
        pick = torch.randperm(len(y), generator=order)[:a.batch]
        if rank == 0:
            loss, acc = me.step(y[pick])
            if r % 15 == 0:
                print(f"round {r} loss {loss:.4f} acc {acc:.3f}", flush=True)
        else:
            me.step(mine[pick])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
