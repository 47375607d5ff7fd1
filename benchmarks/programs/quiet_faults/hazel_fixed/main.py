import argparse
import shutil
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, broadcast_object_list, set_seed
from torch.utils.data import DataLoader

from shards import JsonlStream, write_shards


def parse_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--num_epochs", type=int, default=5)
    ap.add_argument("--per_device_batch_size", type=int, default=16)
    ap.add_argument("--learning_rate", type=float, default=2e-3)
    ap.add_argument("--warmup_steps", type=int, default=10)
    ap.add_argument("--max_grad_norm", type=float, default=1.0)
    ap.add_argument("--logging_steps", type=int, default=8)
    ap.add_argument("--seed", type=int, default=31)
    return ap.parse_args()


class Tower(nn.Module):
    def __init__(self, dim=16, width=96, classes=5):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, width), nn.LayerNorm(width), nn.GELU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1),
        )
        self.head = nn.Linear(width, classes)

    def forward(self, vec):
        return self.head(self.net(vec))


def collate(rows):
    return {
        "vec": torch.tensor([r["vec"] for r in rows]),
        "label": torch.tensor([r["label"] for r in rows]),
    }


def evaluate(accelerator, model, folder, batch_size):
    stream = JsonlStream(folder, accelerator.process_index, accelerator.num_processes, buffer=1)
    model.eval()
    hits = torch.zeros(2, device=accelerator.device)
    with torch.no_grad():
        for batch in DataLoader(stream, batch_size=batch_size, collate_fn=collate):
            pred = model(batch["vec"].to(accelerator.device)).argmax(-1).cpu()
            hits += torch.tensor([(pred == batch["label"]).sum().item(), float(len(pred))])
    model.train()
    hits = accelerator.reduce(hits, reduction="sum")
    return (hits[0] / hits[1]).item()


def main():
    args = parse_args()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    set_seed(args.seed)
    box = [None, None]
    if accelerator.is_main_process:
        box = [tempfile.mkdtemp(prefix="stream_"), tempfile.mkdtemp(prefix="stream_val_")]
        write_shards(box[0])
        write_shards(box[1], count=2, rows=96, seed=10)
    broadcast_object_list(box, from_process=0)
    train_dir, val_dir = box

    stream = JsonlStream(
        train_dir, accelerator.process_index, accelerator.num_processes, seed=args.seed
    )
    loader = DataLoader(stream, batch_size=args.per_device_batch_size, collate_fn=collate)
    model = Tower()
    set_seed(args.seed, device_specific=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / args.warmup_steps, (args.warmup_steps / (s + 1)) ** 0.5)
    )
    model, optimizer = accelerator.prepare(model, optimizer)

    step = 0
    for epoch in range(args.num_epochs):
        stream.set_epoch(epoch)
        for batch in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(batch["vec"]), batch["label"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()
            step += 1
            if step % args.logging_steps == 0:
                mean = accelerator.reduce(loss.detach(), reduction="mean").item()
                accelerator.print(f"epoch {epoch} step {step} loss {mean:.4f} lr {scheduler.get_last_lr()[0]:.2e}")
        acc = evaluate(accelerator, accelerator.unwrap_model(model), val_dir, 32)
        accelerator.print(f"epoch {epoch} accuracy {acc:.3f}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        for folder in box:
            shutil.rmtree(folder, ignore_errors=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
