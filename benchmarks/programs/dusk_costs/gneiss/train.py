"""Frame-level phone classifier; data-parallel with mp.spawn and own gradient averaging."""
import argparse
import logging
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

from engine import Engine


class PhoneNet(nn.Module):
    def __init__(self, mels, hidden, phones):
        super().__init__()
        self.conv1 = nn.Conv1d(mels, hidden, 5, padding=2)
        self.conv2 = nn.Conv1d(hidden, hidden, 5, padding=2)
        self.out = nn.Linear(hidden, phones)

    def encode(self, mel):
        h = torch.relu(self.conv1(mel))
        return torch.relu(self.conv2(h)).transpose(1, 2)

    def classify(self, hidden):
        return self.out(hidden)


class Shard:
    """Utterances of one recording site per rank. Clipped takes give log-mel of -inf."""

    def __init__(self, rank, batches, batch, mels, frames, phones, bad_every):
        self.rank, self.batches, self.batch = rank, batches, batch
        self.mels, self.frames, self.phones, self.bad_every = mels, frames, phones, bad_every
        g = torch.Generator().manual_seed(0)
        self.table = torch.rand(phones, mels, generator=g)

    def __iter__(self):
        g = torch.Generator().manual_seed(1000 + self.rank)
        for b in range(self.batches):
            y = torch.randint(0, self.phones, (self.batch, self.frames // 8), generator=g).repeat_interleave(8, 1)
            power = self.table[y] + 0.3 * torch.rand(self.batch, self.frames, self.mels, generator=g)
            if self.bad_every and b % self.bad_every == self.bad_every - 1:
                power[0, : self.frames // 4] = 0.0
            yield power.log().transpose(1, 2), y


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def worker(rank, world, port, args):
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = PhoneNet(args.mels, args.hidden, args.phones)
    engine = Engine(model, torch.optim.Adam(model.parameters(), lr=args.lr), rank)
    bad_every = args.bad_every if rank == world - 1 else 0
    shard = Shard(rank, args.batches, args.batch, args.mels, args.frames, args.phones, bad_every)
    for i, (mel, target) in enumerate(shard):
        loss = engine.step(mel, target)
        if rank == 0 and (i + 1) % 30 == 0:
            logging.info("step %d loss %.4f", i + 1, loss)
    engine.report()
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--world", type=int, default=2)
    ap.add_argument("--batches", type=int, default=240)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--mels", type=int, default=40)
    ap.add_argument("--frames", type=int, default=400)
    ap.add_argument("--hidden", type=int, default=96)
    ap.add_argument("--phones", type=int, default=48)
    ap.add_argument("--bad-every", type=int, default=5)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    mp.spawn(worker, args=(args.world, free_port(), args), nprocs=args.world)


if __name__ == "__main__":
    main()
