import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from data import BucketedDistributedSampler, Utterances, collate


class SpeechClassifier(nn.Module):
    def __init__(self, mel=40, dim=96, heads=4, layers=2, classes=24):
        super().__init__()
        self.proj = nn.Linear(mel, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 3 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, x, lengths):
        pad = torch.arange(x.shape[1])[None] >= lengths[:, None]
        h = self.encoder(self.proj(x), src_key_padding_mask=pad)
        h = h.masked_fill(pad[..., None], 0).sum(1) / lengths[:, None]
        return self.head(h)


def run(args):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(21)
    model = DDP(SpeechClassifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Utterances()
    sampler = BucketedDistributedSampler(data.lengths, args.batch_size, rank, world, seed=3)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    t0, step, frames = time.time(), 0, 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, lengths, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, lengths), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            frames += int(lengths.sum())
            if step % 10 == 0 and rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} {step / (time.time() - t0):.2f} it/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--lr", type=float, default=5e-4)
    run(parser.parse_args())
