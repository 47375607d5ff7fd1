"""Length-bucketed training under FSDP2; every rank runs the same number of micro-batches."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

VOCAB, D, BUDGET, DOCS, STEPS = 40, 24, 96, 8, 10


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.rnn = nn.LayerNorm(D), nn.GRU(D, D, batch_first=True)

    def forward(self, x):
        return x + self.rnn(self.norm(x))[0]


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.out = nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, ids):
        h = self.emb(ids)
        for layer in self.layers:
            h = layer(h)
        return self.out(h)


def sample(gen, rank, step):
    out = []
    for _ in range(DOCS):
        n = int(torch.randint(6, 20 + 8 * rank + step, (1,), generator=gen))
        start = int(torch.randint(0, VOCAB, (1,), generator=gen))
        out.append((start + 2 * torch.arange(n)) % VOCAB)
    return out


def pack(docs):
    docs = sorted(docs, key=len, reverse=True)
    groups, cur = [], []
    for d in docs:
        if cur and len(cur[0]) * (len(cur) + 1) > BUDGET:
            groups.append(cur)
            cur = []
        cur.append(d)
    groups.append(cur)
    return groups


def collate(group):
    width = max(map(len, group))
    ids = torch.zeros(len(group), width, dtype=torch.long)
    mask = torch.zeros(len(group), width, dtype=torch.bool)
    for i, d in enumerate(group):
        ids[i, :len(d)], mask[i, :len(d)] = d, True
    return ids, mask


def equalise(groups):
    n = torch.tensor(len(groups))
    dist.all_reduce(n, op=dist.ReduceOp.MAX)
    batches = [collate(g) for g in groups]
    filler = (torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.bool))
    return batches + [filler] * (int(n) - len(batches))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(31)
    model = LM()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    gen = torch.Generator().manual_seed(1000 + rank)
    for step in range(STEPS):
        batches = equalise(pack(sample(gen, rank, step)))
        tokens = torch.tensor(float(sum(m[:, 1:].sum() for _, m in batches)))
        dist.all_reduce(tokens)
        opt.zero_grad()
        total = torch.zeros(())
        for i, (ids, mask) in enumerate(batches):
            model.set_requires_gradient_sync(i == len(batches) - 1)
            nll = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
            loss = (nll * mask[:, 1:]).sum() * world / tokens
            loss.backward()
            total += loss.detach() / world
        opt.step()
        dist.all_reduce(total)
        if rank == 0 and step % 3 == 0:
            print(f"step {step} micro {len(batches)} loss {total.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
