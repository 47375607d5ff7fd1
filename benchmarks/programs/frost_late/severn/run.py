import argparse

import torch
import torch.distributed as dist

from stages import Back, Front


def schedule(step):
    if step < 8:
        return 2, "gpipe"
    if step < 16:
        return 4, "gpipe"
    return 8, "1f1b"


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(40 + rank)
    stage = Front() if rank == 0 else Back()
    gen = torch.Generator().manual_seed(3)
    for step in range(a.steps):
        x = torch.randn(64, 12, generator=gen)
        y = x[:, :3].argmax(1)
        chunks, order = schedule(step)
        loss = stage.step(x if rank == 0 else y, chunks, order)
        if rank == 1 and step % 5 == 0:
            print(f"step {step} {order} x{chunks} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
