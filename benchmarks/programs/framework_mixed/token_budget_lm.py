import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class LM(nn.Module):
    def __init__(self, vocab=64, d=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.rnn = nn.LSTM(d, d, batch_first=True)
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def corpus(n=600):
    g = torch.Generator().manual_seed(0)
    out = []
    for _ in range(n):
        length = int(torch.randint(4, 48, (1,), generator=g))
        out.append((torch.randint(0, 60, (1,), generator=g) + torch.arange(length)) % 60 + 1)
    return out


def pack(sequences, budget):
    """Micro-batches of at most `budget` padded tokens."""
    current, longest = [], 0
    for s in sorted(sequences, key=len):
        if current and max(longest, len(s)) * (len(current) + 1) > budget:
            yield nn.utils.rnn.pad_sequence(current, batch_first=True)
            current, longest = [], 0
        current.append(s)
        longest = max(longest, len(s))
    yield nn.utils.rnn.pad_sequence(current, batch_first=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--budget", type=int, default=256)
    ap.add_argument("--start-batch", type=int, default=8)
    ap.add_argument("--final-batch", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(LM())
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    data = corpus()
    for epoch in range(args.epochs):
        size = args.start_batch + (args.final_batch - args.start_batch) * epoch // max(1, args.epochs - 1)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch)).tolist()
        for i in range(0, len(order) - size * world + 1, size * world):
            mine = [data[j] for j in order[i + rank : i + size * world : world]]
            micro = list(pack(mine, args.budget))
            tokens = torch.tensor([float(sum(len(s) - 1 for s in mine))])
            dist.all_reduce(tokens)
            total = 0.0
            for k, ids in enumerate(micro):
                last = k == len(micro) - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    logits = model(ids[:, :-1])
                    loss = nn.functional.cross_entropy(
                        logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0, reduction="sum"
                    )
                    (loss * world / tokens.item()).backward()
                    total += loss.detach()
            opt.step()
            opt.zero_grad(set_to_none=True)
        if rank == 0:
            print(f"epoch {epoch} batch {size} micro {len(micro)} loss {total.item() / tokens.item() * world:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
