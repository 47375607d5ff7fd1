"""Predicts late payment from invoice features; currencies are converted while loading."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import prices


class Invoices(Dataset):
    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.amount = torch.rand(count, generator=gen) * 3
        self.code = torch.randint(0, len(prices.codes()), (count,), generator=gen).tolist()
        self.other = torch.randn(count, 10, generator=gen)
        self.names = prices.codes()

    def __len__(self):
        return len(self.code)

    def __getitem__(self, i):
        value = prices.convert(self.amount[i].item(), self.names[self.code[i]])
        late = float(value + self.other[i, 0] * self.other[i, 1] > 2.0)
        return torch.cat([torch.tensor([value]), self.other[i]]), torch.tensor(late)


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(11, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


def run_epoch(model, loader, optimizer=None):
    sums = torch.zeros(3)
    for features, late in loader:
        with torch.set_grad_enabled(optimizer is not None):
            logits = model(features)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, late)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = ((logits.detach() > 0).float() == late).sum()
        sums += torch.stack([loss.detach() * len(late), right, torch.tensor(float(len(late)))])
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--count", type=int, default=3600)
    parser.add_argument("--batch", type=int, default=30)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    updater = prices.Updater()
    updater.start()
    torch.manual_seed(6)
    train, test = Invoices(args.count, 1), Invoices(600, 2)
    sampler = DistributedSampler(train, seed=1)
    loader = DataLoader(train, args.batch, sampler=sampler, num_workers=args.workers)
    test_part = torch.utils.data.Subset(test, range(rank, len(test), world))
    test_loader = DataLoader(test_part, 100)
    net = Net(96)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss, _ = run_epoch(model, loader, optimizer)
        net.eval()
        _, accuracy = run_epoch(net, test_loader)
        net.train()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f} test accuracy {accuracy:.3f} rate rounds {updater.rounds}", flush=True)
    updater.stop()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
