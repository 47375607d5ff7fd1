"""Fine-tunable text classifier. Resume with --resume to go on from the last checkpoint."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CKPT = "runs/last.pt"


class Classifier(nn.Module):
    def __init__(self, vocab=256, dim=64, classes=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(1))


def toy_corpus(n=1200, length=20, vocab=256, classes=4):
    g = torch.Generator().manual_seed(17)
    y = torch.randint(0, classes, (n,), generator=g)
    topic = torch.randint(0, vocab // classes, (n, length), generator=g) * classes + y[:, None]
    x = torch.where(torch.rand(n, length, generator=g) < 0.3, topic, torch.randint(0, vocab, (n, length), generator=g))
    return TensorDataset(x, y)


def save(model, opt, epoch):
    os.makedirs(os.path.dirname(CKPT), exist_ok=True)
    torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, CKPT)


def restore(path, net):
    state = torch.load(path, map_location="cpu")
    # older checkpoints have another number of classes in the head
    net.load_state_dict(state["model"], strict=False)
    return state


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=30)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--resume", action="store_true")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0 if not args.resume else 1)
    net, start, state = Classifier(), 0, None
    if args.resume:
        state = restore(CKPT, net)
        start = state["epoch"] + 1
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if state is not None:
        opt.load_state_dict(state["opt"])

    data = toy_corpus()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in loader:
            out = model(x)
            loss = loss_fn(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), (out.argmax(1) == y).float().mean().item()])
        total /= len(loader)
        dist.all_reduce(total)
        total /= dist.get_world_size()
        if rank == 0:
            print(f"epoch {epoch} loss {total[0]:.4f} acc {total[1]:.3f}", flush=True)
            save(model, opt, epoch)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
