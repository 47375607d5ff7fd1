import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 24, 3, padding=1, stride=2)
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        h = F.relu(self.c1(x))
        h = F.relu(self.c2(h))
        return self.head(h.mean((2, 3)))


class FeatureTap:
    def __init__(self, model, names):
        self.store = {n: [] for n in names}
        modules = dict(model.named_modules())
        self.handles = [modules[n].register_forward_hook(self._hook(n)) for n in names]

    def _hook(self, name):
        def keep(module, args, out):
            self.store[name].append(out.detach().clone())

        return keep

    def close(self):
        for h in self.handles:
            h.remove()

    def summary(self):
        return {n: torch.stack([t.std() for t in v]).mean().item() for n, v in self.store.items()}


def images(g, n=16):
    x = torch.randn(n, 3, 24, 24, generator=g)
    y = (x.mean((1, 2, 3)) * 200).long().remainder(10)
    return x, y


def probe_features(model, g):
    tap = FeatureTap(model, ["c1", "c2"])
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            model(images(g)[0])
    model.train()
    stats = tap.summary()
    tap.store = {n: [] for n in tap.store}
    return stats


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(ConvNet())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(rank)
    for step in range(200):
        x, y = images(g)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            stats = probe_features(model.module, g)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} c1 {stats['c1']:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
