import torch
import torch.distributed as dist
import torch.nn as nn


class Tower(nn.Module):
    tables = {"user": 40, "item": 64, "query": 24, "shop": 16, "brand": 12, "city": 20, "device": 8, "hour": 28}

    def __init__(self):
        super().__init__()
        self.emb = nn.ModuleDict({k: nn.Embedding(n, 8) for k, n in self.tables.items()})
        self.top = nn.Linear(8 * len(self.tables), 1)

    def forward(self, ids):
        return self.top(torch.cat([self.emb[k](ids[k]) for k in self.tables], 1)).squeeze(1)


class Plan:
    def __init__(self, tables, world, allowed):
        names = list(set(tables) & set(allowed))
        self.names = names
        self.owner = {t: i % world for i, t in enumerate(sorted(tables))}


class OwnedOptimizer:
    def __init__(self, model, plan, rank, lr=0.1):
        self.model, self.plan, self.rank, self.lr = model, plan, rank, lr

    def dense_step(self):
        for p in self.model.top.parameters():
            dist.all_reduce(p.grad)
            p.data.add_(p.grad, alpha=-self.lr / dist.get_world_size())

    def table_step(self):
        for name in self.plan.names:
            w = self.model.emb[name].weight
            owner = self.plan.owner[name]
            dist.reduce(w.grad, dst=owner)
            if owner == self.rank:
                w.data.add_(w.grad, alpha=-self.lr)
        for name in self.plan.names:
            dist.broadcast(self.model.emb[name].weight.data, src=self.plan.owner[name])

    def zero(self):
        for p in self.model.parameters():
            p.grad = None


class Clicks:
    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(rank)

    def draw(self, n=64):
        ids = {k: torch.randint(0, s, (n,), generator=self.gen) for k, s in Tower.tables.items()}
        y = ((ids["user"] + ids["item"]) % 3 == 0).float()
        return ids, y


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Tower()
    plan = Plan(Tower.tables, world, allowed=list(Tower.tables) + ["session"])
    opt = OwnedOptimizer(model, plan, rank)
    clicks = Clicks(rank)
    warmup = 15
    for step in range(60):
        ids, y = clicks.draw()
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), y)
        opt.zero()
        loss.backward()
        opt.dense_step()
        if step >= warmup:
            opt.table_step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
