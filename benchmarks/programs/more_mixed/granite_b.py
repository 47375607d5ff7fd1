"""Streaming text shards from the datasets library, one pass, DDP language model."""
import argparse
import os

os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
import torch
import torch.distributed as dist
import torch.nn.functional as F
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


def read_shards(shards):
    for s in shards:
        g = torch.Generator().manual_seed(s["seed"])
        for _ in range(s["rows"]):
            start = int(torch.randint(0, 20, (1,), generator=g))
            yield {"ids": [(start + k * s["stride"]) % 20 for k in range(13)]}


def build_loader(rank, world, batch_size):
    shards = [{"seed": i, "rows": 96 + 32 * (i % 2), "stride": 1 + i % 3} for i in range(6)]
    ds = IterableDataset.from_generator(read_shards, gen_kwargs={"shards": shards})
    ds = split_dataset_by_node(ds, rank=rank, world_size=world)
    return DataLoader(ds, batch_size=batch_size, collate_fn=lambda rows: torch.tensor([r["ids"] for r in rows]))


def batches(loader):
    it = iter(loader)
    while True:
        ids = next(it, None)
        more = torch.tensor(int(ids is not None))
        dist.all_reduce(more, op=dist.ReduceOp.MIN)
        if not more:
            return
        yield ids


class CharLM(nn.Module):
    def __init__(self, vocab=20, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.LSTM(d, d, batch_first=True)
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def report(rank, step, loss):
    if rank == 0:
        print(f"step {step} loss {loss:.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--log-every", type=int, default=5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DDP(CharLM())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step, tokens = 0, 0
    for ids in batches(build_loader(rank, world, args.batch_size)):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        tokens += ids.numel()
        if step % args.log_every == 0:
            report(rank, step, loss.item())
    seen = torch.tensor([tokens])
    dist.all_reduce(seen)
    if rank == 0:
        print(f"done: {step} steps, {seen.item()} tokens", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
