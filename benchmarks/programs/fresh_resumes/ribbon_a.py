import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Documents(Dataset):
    def __init__(self, n, vocab):
        g = torch.Generator().manual_seed(33)
        self.lengths = torch.randint(12, 40, (n,), generator=g).tolist()
        self.ids = torch.randint(1, vocab, (n, 41), generator=g)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        row = self.ids[i].clone()
        row[self.lengths[i] + 1 :] = 0
        return row


class LM(nn.Module):
    def __init__(self, vocab, dim=160):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])


def chunks(loader, k):
    group = []
    for batch in loader:
        group.append(batch)
        if len(group) == k:
            yield group
            group = []


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--accum", type=int, default=4)
    p.add_argument("--vocab", type=int, default=600)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Documents(1536, args.vocab)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
    model = DDP(LM(args.vocab))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for group in chunks(loader, args.accum):
            tokens = torch.tensor(float(sum((b[:, 1:] != 0).sum().item() for b in group)))
            dist.all_reduce(tokens)
            opt.zero_grad(set_to_none=True)
            running = torch.zeros(())
            for k, ids in enumerate(group):
                last = k == len(group) - 1
                with nullcontext() if last else model.no_sync():
                    logits = model(ids[:, :-1])
                    nll = F.cross_entropy(
                        logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0, reduction="sum"
                    )
                    loss = nll * world / tokens
                    loss.backward()
                running += loss.detach()
            opt.step()
        if rank == 0:
            print(epoch, round(running.item(), 4), int(tokens), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
