"""Rank 0 reads and tokenises and hands out batches; the others train and ask when they are ready."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LINES = ["the quick brown fox", "jumps over a lazy dog", "pack my box with five", "dozen liquor jugs",
         "how vexingly quick daft", "zebras jump", "sphinx of black quartz", "judge my vow"]
LEN = 16


def tokens(line):
    ids = [ord(c) - 96 if c.isalpha() else 0 for c in line][:LEN + 1]
    return ids + [0] * (LEN + 1 - len(ids))


def feeder(args, consumers):
    """Serves whoever asks first; every consumer gets the same number of batches in the end."""
    gen = torch.Generator().manual_seed(3)
    left = {c: args.steps for c in consumers}
    served = 0
    while any(left.values()):
        ask = torch.empty(1, dtype=torch.long)
        who = dist.recv(ask, tag=1)
        pick = torch.randint(0, len(LINES), (args.batch,), generator=gen)
        batch = torch.tensor([tokens(LINES[i]) for i in pick.tolist()])
        time.sleep(0.001 * (1 + served % 7))  # some lines take longer
        dist.send(batch, dst=who, tag=2)
        left[who] -= 1
        served += 1
    print(f"feeder: {served} batches handed out", flush=True)


class CharModel(nn.Module):
    def __init__(self, vocab=27, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def consumer(args, rank, group):
    torch.manual_seed(9)
    ddp = DDP(CharModel(), process_group=group)
    opt = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    buf = torch.empty(args.batch, LEN + 1, dtype=torch.long)
    for step in range(args.steps):
        dist.send(torch.tensor([step]), dst=0, tag=1)
        dist.recv(buf, src=0, tag=2)
        logits = ddp(buf[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), buf[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 1 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    consumers = list(range(1, world))
    group = dist.new_group(consumers)
    if rank == 0:
        feeder(args, consumers)
    else:
        consumer(args, rank, group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
