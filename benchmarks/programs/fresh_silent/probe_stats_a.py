import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Waves(Dataset):
    def __init__(self, n=12800, dim=32):
        g = torch.Generator().manual_seed(23)
        phase = torch.rand(n, 1, generator=g) * 6.28
        self.x = torch.sin(torch.linspace(0, 6.28, dim) + phase)
        self.y = phase.cos()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Net(nn.Module):
    def __init__(self, width=4096):
        super().__init__()
        self.up = nn.Linear(32, width)
        self.down = nn.Linear(width, 1)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


class ActivationLog:
    def __init__(self, module):
        self.kept = []
        self.handle = module.register_forward_hook(self.hook)

    def hook(self, module, inputs, output):
        self.kept.append(output.detach())

    def summary(self):
        stacked = torch.stack([t.mean() for t in self.kept]), torch.stack([(t > 0).float().mean() for t in self.kept])
        return [s.mean().item() for s in stacked]

    def reset(self):
        self.kept.clear()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--log-every", type=int, default=10)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(30)
    net = Net()
    log = ActivationLog(net.up)
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Waves()
    sampler = DistributedSampler(data, shuffle=True, seed=2)
    loader = DataLoader(data, batch_size=128, sampler=sampler)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % args.log_every == 0:
                if rank == 0:
                    mean, active = log.summary()
                    if step % 100 == 0:
                        print(f"step {step} loss {loss.item():.4f} mean {mean:.3f} active {active:.2f}", flush=True)
                    log.reset()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
