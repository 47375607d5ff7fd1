import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class WordModel(nn.Module):
    def __init__(self, vocab, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)

    def enlarge(self, vocab):
        old, dim = self.emb.weight.shape
        emb, out = nn.Embedding(vocab, dim), nn.Linear(dim, vocab)
        with torch.no_grad():
            emb.weight[:old] = self.emb.weight
            out.weight[:old] = self.out.weight
            out.bias[:old] = self.out.bias
        self.emb, self.out = emb, out


def text(stage, rank):
    gen = torch.Generator().manual_seed(10 * stage + rank)
    size = 200 * (stage + 1)
    lines = []
    for _ in range(30):
        start = torch.randint(0, size, (6, 1), generator=gen)
        lines.append([[f"w{int(w)}" for w in row] for row in (start + torch.arange(13)) % size])
    return lines


def union(words):
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, sorted(words))
    return sorted(set().union(*gathered))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    vocab, model = {}, None
    for stage in range(args.stages):
        lines = text(stage, rank)
        found = union({w for batch in lines for row in batch for w in row})
        for word in found:
            vocab.setdefault(word, len(vocab))
        torch.manual_seed(stage)
        if model is None:
            core = WordModel(len(vocab))
        else:
            core = model.module
            core.enlarge(len(vocab))
        model = DDP(core)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for batch in lines:
            ids = torch.tensor([[vocab[w] for w in row] for row in batch])
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"stage {stage} vocabulary {len(vocab)} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
