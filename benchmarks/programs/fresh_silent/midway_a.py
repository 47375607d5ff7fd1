import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WHERE = Path.cwd() / ("out_" + Path(__file__).stem)


class Tokens(Dataset):
    def __init__(self, n=384, length=16, vocab=64):
        g = torch.Generator().manual_seed(8)
        self.rows = torch.randint(0, vocab, (n, length + 1), generator=g)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return row[:-1], row[1:]


class TinyLM(nn.Module):
    def __init__(self, vocab=64, dim=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def save_state(model, opt, epoch, done):
    torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "epoch": epoch, "done": done}, WHERE / "state.pt")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--max-steps", type=int, default=17)
    p.add_argument("--resume", action="store_true")
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        if not args.resume:
            shutil.rmtree(WHERE, ignore_errors=True)
        WHERE.mkdir(exist_ok=True)
    dist.barrier()

    torch.manual_seed(4)
    model = DDP(TinyLM())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = Tokens()
    sampler = DistributedSampler(data, shuffle=True, seed=6)
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    start_epoch, done = 0, 0
    if args.resume:
        state = torch.load(WHERE / "state.pt", map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        start_epoch, done = state["epoch"], state["done"]

    taken = 0
    for epoch in range(start_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            if epoch == start_epoch and i < done:
                continue
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            taken += 1
            if not args.resume and taken == args.max_steps:
                if rank == 0:
                    save_state(model, opt, epoch, i + 1)
                    print(f"stopped in epoch {epoch} after batch {i}", flush=True)
                dist.barrier()
                dist.destroy_process_group()
                return
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} steps so far {taken}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
