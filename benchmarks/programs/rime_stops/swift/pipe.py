import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from stages import Wire, build_stage


def make_data(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(40, 5, generator=g)
    x = torch.randn(n, 40, generator=g)
    return TensorDataset(x, torch.sin(x @ w / 4))


class GPipe:
    def __init__(self, stage, wire, rank, world, micro_batches):
        self.stage, self.wire = stage, wire
        self.first, self.last = rank == 0, rank == world - 1
        self.micro_batches = micro_batches

    def step(self, x, y):
        inputs, outputs = [], []
        xs = x.chunk(self.micro_batches) if self.first else [None] * self.micro_batches
        for mb in xs:
            act = mb if self.first else self.wire.recv_act()
            out = self.stage(act)
            inputs.append(act)
            outputs.append(out)
            if not self.last:
                self.wire.send_act(out)

        total = 0.0
        if self.last:
            targets = y.split([len(o) for o in outputs])
            losses = [F.mse_loss(o, t, reduction="sum") / y.numel() for o, t in zip(outputs, targets)]
            total = sum(l.item() for l in losses)
        for i in reversed(range(len(outputs))):
            if self.last:
                losses[i].backward()
            else:
                outputs[i].backward(self.wire.recv_grad(outputs[i]))
            if not self.first:
                self.wire.send_grad(inputs[i].grad)
        return total


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=1290)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--micro-batches", type=int, default=8)
    p.add_argument("--width", type=int, default=384)
    p.add_argument("--epochs", type=int, default=7)
    p.add_argument("--lr", type=float, default=5e-4)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = build_stage(rank, world, args.width)
    opt = torch.optim.Adam(stage.parameters(), lr=args.lr)
    pipe = GPipe(stage, Wire(rank, world, args.width), rank, world, args.micro_batches)
    order = torch.Generator().manual_seed(17)
    loader = DataLoader(make_data(args.samples), args.batch_size, shuffle=True, generator=order)

    t0 = time.time()
    for epoch in range(args.epochs):
        acc = 0.0
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            acc += pipe.step(x, y) * len(x)
            opt.step()
        if pipe.last:
            print(f"[epoch {epoch}] mse {acc / args.samples:.5f}  {time.time() - t0:.1f}s", flush=True)
        torch.save(stage.state_dict(), f"stage{rank}.pt")

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
