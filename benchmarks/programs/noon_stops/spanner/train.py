import argparse

import torch
import torch.distributed as dist
from torch import nn

from control import Agreement, choose_chunk


class Forecaster(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.rnn = nn.LSTM(4, width, batch_first=True)
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


class Sensors:
    """Sensor windows; now and then a sensor delivers a gap."""

    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(90 + rank)

    def batch(self, n, length=36):
        phase = 6.28 * torch.rand(n, 1, 4, generator=self.gen)
        speed = 0.1 + 0.3 * torch.rand(n, 1, 4, generator=self.gen)
        x = torch.sin(phase + speed * torch.arange(length + 1).view(1, -1, 1))
        x = x + 0.02 * torch.randn(x.shape, generator=self.gen)
        if torch.rand((), generator=self.gen) < 0.04:
            x[0, length // 2] = float("nan")
        return x[:, :-1], x[:, 1:]


@torch.no_grad()
def average_gradients(model, world):
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--max-steps", type=int, default=4000)
    p.add_argument("--budget", type=float, default=22.0)
    p.add_argument("--plateau", type=int, default=150)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--tune-repeats", type=int, default=60)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = Sensors(rank)
    control = Agreement(args.budget, args.plateau)
    chunk = torch.zeros(1, dtype=torch.int64)
    skipped, why = 0, "steps"
    for step in range(args.max_steps):
        x, y = data.batch(args.batch_size)
        if step == 0:
            if rank == 0:
                chunk[0] = choose_chunk(model, torch.nan_to_num(x), args.tune_repeats)
            dist.broadcast(chunk, src=0)
        size = int(chunk)
        out = torch.cat([model(part) for part in x.split(size)])
        loss = nn.functional.mse_loss(out, y)
        verdict = control.vote(loss)
        if verdict["skip"]:
            skipped += 1
        else:
            opt.zero_grad(set_to_none=True)
            loss.backward()
            average_gradients(model, world)
            opt.step()
        if verdict["late"]:
            why = "budget"
            break
        if not verdict["skip"] and control.flat(verdict["mean"]):
            why = "plateau"
            break
    if rank == 0:
        print(f"stopped by {why} at step {step}, chunk {size}, skipped {skipped}, loss {verdict['mean']:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
