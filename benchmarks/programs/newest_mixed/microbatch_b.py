import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TokenArena:
    def __init__(self, limit):
        self.limit = limit

    def reserve(self, x):
        if x.numel() > self.limit:
            raise MemoryError(f"cannot reserve {x.numel()} tokens")


class Tagger(nn.Module):
    def __init__(self, arena, vocab=50, dim=32):
        super().__init__()
        self.arena = arena
        self.emb = nn.Embedding(vocab, dim)
        self.lin = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 7)

    def forward(self, ids):
        self.arena.reserve(ids)
        return self.out(torch.relu(self.lin(self.emb(ids))))


class Batches:
    def __init__(self, rank, n):
        self.gen = torch.Generator().manual_seed(rank + 40)
        self.n = n

    def __iter__(self):
        for _ in range(self.n):
            length = int(torch.randint(10, 36, (1,), generator=self.gen))
            ids = torch.randint(0, 50, (8, length), generator=self.gen)
            yield ids, ids % 7


class AutoMicrobatch:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.parts = 1

    def _pass(self, ids, tags, parts):
        for x, y in zip(ids.chunk(parts), tags.chunk(parts)):
            logits = self.model(x)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()) / parts
            loss.backward()
        return loss.item() * parts

    def fits(self, ids, parts):
        return ids.chunk(parts)[0].numel() <= self.model.module.arena.limit

    def step(self, ids, tags):
        while not self.fits(ids, self.parts):
            self.parts *= 2
        self.opt.zero_grad()
        loss = self._pass(ids, tags, self.parts)
        self.opt.step()
        return loss


def summarize(losses, parts):
    info = torch.tensor([sum(losses), float(len(losses)), float(parts)], dtype=torch.float64)
    rows = [torch.zeros_like(info) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, info)
    return torch.stack(rows).mean(0).tolist()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DDP(Tagger(TokenArena(limit=264 if rank else 300)))
    stepper = AutoMicrobatch(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    for epoch in range(4):
        losses = []
        for i, (ids, tags) in enumerate(Batches(rank, 25)):
            losses.append(stepper.step(ids, tags))
            if rank == 0 and i % 5 == 0:
                print(f"{epoch}.{i} {losses[-1]:.3f} parts={stepper.parts}", flush=True)
        info = summarize(losses, stepper.parts)
        if rank == 0:
            print("epoch", epoch, info, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
