"""Character level tagger with length grouped batches."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from sampling import LengthGroupedBatchSampler


class Strings(Dataset):
    def __init__(self, n=1200, alphabet=32, seed=5):
        g = torch.Generator().manual_seed(seed)
        lens = torch.randint(6, 40, (n,), generator=g).tolist()
        self.items = [torch.randint(1, alphabet, (l,), generator=g) for l in lens]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        x = self.items[i]
        return x, ((x % 5) + torch.roll(x, 1) % 3) % 5


def collate(batch):
    xs, ys = zip(*batch)
    return pad_sequence(xs, batch_first=True), pad_sequence(ys, batch_first=True, padding_value=-100)


class Tagger(nn.Module):
    def __init__(self, alphabet=32, dim=40, tags=5):
        super().__init__()
        self.emb = nn.Embedding(alphabet, dim, padding_idx=0)
        self.conv = nn.Conv1d(dim, 2 * dim, 5, padding=2)
        self.head = nn.Linear(2 * dim, tags)

    def forward(self, x):
        h = self.emb(x).transpose(1, 2)
        return self.head(torch.relu(self.conv(h)).transpose(1, 2))


class Loop:
    def __init__(self, model, loader, opt, hooks=()):
        self.model, self.loader, self.opt = model, loader, opt
        self.hooks = hooks
        self.criterion = nn.CrossEntropyLoss(ignore_index=-100)

    def on_epoch_start(self, epoch):
        sampler = self.loader.sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)

    def step(self, x, y):
        logits = self.model(x)
        loss = self.criterion(logits.flatten(0, 1), y.flatten())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.on_epoch_start(epoch)
            losses = torch.stack([self.step(x, y) for x, y in self.loader])
            mean = losses.mean()
            dist.all_reduce(mean)
            for hook in self.hooks:
                hook(epoch, mean.item() / dist.get_world_size(), len(losses))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=7)
    p.add_argument("--batch-size", type=int, default=24)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    data = Strings()
    batches = LengthGroupedBatchSampler([len(x) for x in data.items], args.batch_size)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=collate)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)

    def report(epoch, loss, steps):
        if dist.get_rank() == 0:
            print(f"epoch={epoch} steps={steps} loss={loss:.4f}", flush=True)

    Loop(model, loader, opt, [report]).fit(args.epochs)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
