"""Plain data parallel training without a wrapper: average the gradients group by group, then step."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WIDTH = 32


class Mixer(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(depth))
        self.maps = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.readout = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for norm, lin in zip(self.norms, self.maps):
            x = x + F.gelu(lin(norm(x)))
        return self.readout(x)


def split_by_decay(model):
    """Weights of linear maps are decayed, biases and norms are not."""
    decay, rest = set(), set()
    for mod_name, mod in model.named_modules():
        for name, _ in mod.named_parameters(recurse=False):
            full = f"{mod_name}.{name}" if mod_name else name
            if name == "weight" and isinstance(mod, nn.Linear):
                decay.add(full)
            else:
                rest.add(full)
    return decay, rest


def make_optimizer(model, lr=2e-3, weight_decay=0.1):
    decay, rest = split_by_decay(model)
    named = dict(model.named_parameters())
    groups = [
        {"params": [named[n] for n in decay], "weight_decay": weight_decay},
        {"params": [named[n] for n in rest], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


@torch.no_grad()
def average_gradients(optimizer, world):
    for group in optimizer.param_groups:
        for p in group["params"]:
            dist.all_reduce(p.grad)
            p.grad /= world


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(13)
    g = torch.Generator().manual_seed(14)
    x = torch.randn(768, WIDTH, generator=g)
    y = (x @ torch.randn(WIDTH, WIDTH, generator=g)).argmax(-1)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=24, sampler=sampler)
    model = Mixer()
    optimizer = make_optimizer(model)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            average_gradients(optimizer, world)
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
