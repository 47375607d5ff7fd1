"""Decentralised SGD: every rank trains alone and mixes its weights with a ring neighbour."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class TimeSeriesNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0]).squeeze(-1)


class Sines:
    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(60 + rank)

    def batch(self, rows, length):
        freq = torch.rand(rows, 1, generator=self.gen) * 0.4 + 0.1
        phase = torch.rand(rows, 1, generator=self.gen) * 6.28
        wave = torch.sin(freq * torch.arange(length + 1) + phase)
        wave = wave + 0.05 * torch.randn(wave.shape, generator=self.gen)
        return wave[:, :-1, None], wave[:, 1:]


class RingMixer:
    def __init__(self, model, weight=0.5):
        self.model, self.weight = model, weight
        rank, world = dist.get_rank(), dist.get_world_size()
        self.right, self.left = (rank + 1) % world, (rank - 1) % world

    @torch.no_grad()
    def mix(self):
        mine = parameters_to_vector(self.model.parameters())
        theirs = torch.empty_like(mine)
        pending = dist.isend(mine, dst=self.right)
        dist.recv(theirs, src=self.left)
        pending.wait()
        mine = (1 - self.weight) * mine + self.weight * theirs
        vector_to_parameters(mine, self.model.parameters())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--local-steps", type=int, default=50, help="steps before the first exchange")
    p.add_argument("--mix-every", type=int, default=5)
    p.add_argument("--rows", type=int, default=24)
    p.add_argument("--length", type=int, default=40)
    a = p.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = TimeSeriesNet()
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    data, mixer = Sines(rank), RingMixer(model)

    for step in range(1, a.steps + 1):
        x, y = data.batch(a.rows, a.length)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step >= a.local_steps and step % a.mix_every == 0:
            mixer.mix()
        if step % 10 == 0 and rank == 0:
            print(f"step {step} mse {loss.item():.5f}", flush=True)

    final = parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(final)
    vector_to_parameters(final / dist.get_world_size(), model.parameters())
    if rank == 0:
        x, y = data.batch(256, a.length)
        with torch.no_grad():
            print(f"averaged model mse {F.mse_loss(model(x), y).item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
