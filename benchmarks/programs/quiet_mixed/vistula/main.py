import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from encoder import Encoder
from lengths import BucketedBatches
from speech import Utterances, pad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--items", type=int, default=576)
    p.add_argument("--mels", type=int, default=20)
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--classes", type=int, default=8)
    p.add_argument("--per-rank", type=int, default=16)
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(7)
    ds = Utterances(args.items, args.mels, args.classes)
    batches = BucketedBatches(ds.length, args.per_rank, accelerator.process_index, accelerator.num_processes)
    loader = DataLoader(ds, batch_sampler=batches, collate_fn=pad)
    model = Encoder(args.mels, args.dim, args.classes)
    model, optim = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for epoch in range(args.epochs):
        batches.set_epoch(epoch)
        running = 0.0
        for step, (x, n, y) in enumerate(loader, 1):
            loss = F.cross_entropy(model(x, n), y)
            accelerator.backward(loss)
            optim.step()
            optim.zero_grad()
            running += loss.item()
        mean = accelerator.reduce(torch.tensor(running / step), reduction="mean")
        accelerator.print(f"epoch {epoch} loss {mean.item():.4f}", flush=True)
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
