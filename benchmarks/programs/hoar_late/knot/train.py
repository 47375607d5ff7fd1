import argparse

import torch
import torch.distributed as dist
import torch.nn as nn

from microbatches import RampupCalculator
from p2p_communication import Stages


def build_stage(comm, hidden, classes):
    if comm.is_first:
        return nn.Sequential(nn.Linear(20, hidden), nn.GELU())
    if comm.is_last:
        return nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, classes))
    return nn.Sequential(nn.Linear(hidden, hidden), nn.GELU())


class Trainer:
    def __init__(self, args, comm):
        self.args = args
        self.comm = comm
        self.stage = build_stage(comm, args.hidden, 4)
        self.opt = torch.optim.AdamW(self.stage.parameters(), lr=2e-3)
        self.calc = RampupCalculator(2, 6, 2, args.ramp_samples)
        self.consumed = 0
        self.data = torch.Generator().manual_seed(7)

    def next_microbatch(self):
        x = torch.randn(self.args.mbs, 20, generator=self.data)
        y = x[:, :4].argmax(1)
        return x, y

    def step(self):
        comm = self.comm
        n_micro = self.calc.get(self.consumed)
        pending, losses = [], []
        self.opt.zero_grad()
        for _ in range(n_micro):
            x, y = self.next_microbatch()
            inp = comm.recv_forward()
            out = self.stage(x if comm.is_first else inp)
            if comm.is_last:
                out = nn.functional.cross_entropy(out, y) / n_micro
                losses.append(out.detach())
            comm.send_forward(out)
            pending.append((inp, out))
            self.consumed += self.args.mbs
        for inp, out in pending:
            grad = comm.recv_backward()
            if grad is None:
                out.backward()
            else:
                out.backward(grad)
            if inp is not None:
                comm.send_backward(inp.grad)
        self.opt.step()
        return n_micro, sum(losses).item() if losses else 0.0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=40)
    p.add_argument("--mbs", type=int, default=8)
    p.add_argument("--hidden", type=int, default=32)
    p.add_argument("--ramp-samples", type=int, default=480)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1234 + dist.get_rank())
    trainer = Trainer(args, Stages((args.mbs, args.hidden)))
    for it in range(args.iters):
        n_micro, loss = trainer.step()
        if trainer.comm.is_last and it % 5 == 0:
            print(f"iter {it} micro-batches {n_micro} loss {loss:.4f}", flush=True)
    dist.barrier()
    if dist.get_rank() == 0:
        print("finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
