"""Two-tower retrieval on generated bag-of-token documents.

After every epoch the document tower encodes the corpus, the vectors go into an
on-disk index, and the index is queried with held-out paraphrases.
"""
import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import index_store


class Paraphrases(Dataset):
    def __init__(self, n_docs, vocab, length, seed):
        g = torch.Generator().manual_seed(seed)
        self.docs = torch.randint(1, vocab, (n_docs, length), generator=g)
        self.vocab = vocab
        self.seed = seed

    def __len__(self):
        return len(self.docs)

    def paraphrase(self, i, salt):
        g = torch.Generator().manual_seed(self.seed * 7919 + i * 31 + salt)
        doc = self.docs[i]
        keep = torch.rand(len(doc), generator=g) > 0.45
        noise = torch.randint(1, self.vocab, (len(doc),), generator=g)
        return torch.where(keep, doc, noise)

    def __getitem__(self, i):
        return self.docs[i], self.paraphrase(i, salt=1)


class Tower(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.proj = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, tokens):
        h = self.emb(tokens)
        return F.normalize(h + self.proj(h), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.doc = Tower(vocab, dim)
        self.query = Tower(vocab, dim)
        self.log_tau = nn.Parameter(torch.tensor(2.3))

    def forward(self, docs, queries):
        d, q = self.doc(docs), self.query(queries)
        logits = q @ d.t() * self.log_tau.exp()
        labels = torch.arange(len(logits))
        return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels))


@torch.no_grad()
def encode_corpus(model, data, rank, world, chunk=64):
    ids = torch.arange(rank, len(data), world)
    vecs = [model.doc(data.docs[part]).numpy() for part in ids.split(chunk)]
    return ids.numpy(), np.concatenate(vecs)


@torch.no_grad()
def recall_at(model, data, ids, vecs, k=5):
    hits = 0
    table = torch.from_numpy(vecs)
    for i in ids.tolist():
        q = model.query(data.paraphrase(i, salt=2)[None])
        top = (q @ table.t()).topk(k).indices[0]
        hits += int(i in ids[top.numpy()])
    return hits / len(ids)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--docs", type=int, default=512)
    ap.add_argument("--vocab", type=int, default=900)
    ap.add_argument("--dim", type=int, default=48)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--seed", type=int, default=11)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    index_dir = args.out / "index"
    if rank == 0:
        index_store.prepare(index_dir)
    dist.barrier()

    data = Paraphrases(args.docs, args.vocab, 24, args.seed)
    sampler = DistributedSampler(data, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    net = DDP(TwoTower(args.vocab, args.dim))
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-2)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        net.train()
        total = torch.zeros(2)
        for docs, queries in loader:
            loss = net(docs, queries)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)

        net.eval()
        ids, vecs = encode_corpus(net.module, data, rank, world)
        index_store.add_part(index_dir, epoch, rank, ids, vecs)
        dist.barrier()
        if rank == 0:
            ids, vecs = index_store.load(index_dir, epoch)
            r5 = recall_at(net.module, data, ids, vecs)
            print(f"epoch {epoch} loss {total[0] / total[1]:.4f} recall@5 {r5:.3f}", flush=True)
            torch.save(net.module.state_dict(), args.out / "towers.pt")
        dist.barrier()

    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
