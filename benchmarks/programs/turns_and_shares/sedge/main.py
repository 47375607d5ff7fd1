"""Two-neighbour local SGD: the head is averaged after every step, everything after every tenth."""
import os
import sys
import tempfile
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from courier import Courier


@dataclass
class Settings:
    steps: int = 60
    whole_every: int = 10
    batch: int = 48
    width: int = 160
    lr: float = 0.08
    seed: int = 77
    out: str = os.path.join(tempfile.gettempdir(), "neighbours")


def settings_from(argv):
    kinds = {f.name: f.type for f in fields(Settings)}
    given = {}
    for item in argv:
        key, _, value = item.lstrip("-").partition("=")
        given[key] = kinds[key](value) if not isinstance(kinds[key], str) else type(getattr(Settings, key))(value)
    return Settings(**given)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                  nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        return self.head(self.body(x))


class Shapes:
    """Noisy one-dimensional outlines of five shapes."""

    def __init__(self, seed, noise=0.4):
        t = torch.linspace(0, 6.28, 20)
        self.forms = torch.stack([t.sin(), t.cos(), (2 * t).sin(), (t - 3.14).sign(), (t / 3.14 - 1).abs()])
        self.noise = noise
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, count):
        y = torch.randint(5, (count,), generator=self.gen)
        x = self.forms[y] + self.noise * torch.randn(count, 20, generator=self.gen)
        return x, y


@torch.no_grad()
def average_with_neighbour(module, courier):
    params = list(module.parameters())
    flat = torch.cat([p.flatten() for p in params])
    flat = (flat + courier.swap(flat)) / 2
    for p, piece in zip(params, flat.split([p.numel() for p in params])):
        p.copy_(piece.view_as(p))


def main():
    cfg = settings_from(sys.argv[1:])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert dist.get_world_size() == 2, "made for a pair of machines"
    torch.manual_seed(cfg.seed)
    net = Net(cfg.width)
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    opt = torch.optim.SGD(net.parameters(), lr=cfg.lr)
    data = Shapes(cfg.seed * 100 + rank)
    courier = Courier(peer=1 - rank)

    window = []
    for step in range(1, cfg.steps + 1):
        x, y = data.draw(cfg.batch)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        window.append(loss.item())
        if step % cfg.whole_every == 0:
            average_with_neighbour(net, courier)
            if rank == 0:
                print(f"step {step} loss {sum(window) / len(window):.4f}", flush=True)
            window = []
        else:
            average_with_neighbour(net.head, courier)
    courier.close()
    if rank == 0:
        x, y = Shapes(cfg.seed + 1).draw(1000)
        with torch.no_grad():
            print(f"accuracy {(net(x).argmax(1) == y).float().mean():.3f}", flush=True)
        os.makedirs(cfg.out, exist_ok=True)
        torch.save(net.state_dict(), os.path.join(cfg.out, "shapes.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
