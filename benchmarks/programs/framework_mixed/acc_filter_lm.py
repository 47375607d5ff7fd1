import argparse

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import Dataset
from torch.utils.data import DataLoader


def documents(n=420):
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 40, (n,), generator=g).tolist()
    return Dataset.from_dict({"text": [" ".join(["tok"] * l) for l in lengths], "score": torch.rand(n, generator=g).tolist()})


def featurize(row):
    words = row["text"].split()
    return {"x": [len(words) / 40.0, row["score"], len(words) * row["score"] / 40.0, 1.0], "y": float(len(words) > 20)}


def load_train(accelerator, min_words):
    ds = documents().shard(accelerator.num_processes, accelerator.process_index, contiguous=True)
    ds = ds.filter(lambda r: len(r["text"].split()) >= min_words)
    ds = ds.map(featurize, remove_columns=["text", "score"]).with_format("torch")
    return ds


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=4)
    ap.add_argument("--min-words", type=int, default=12)
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(3)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(model.parameters(), 1e-2)
    train = load_train(accelerator, args.min_words)
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    model, opt = accelerator.prepare(model, opt)
    for epoch in range(args.epochs):
        model.train()
        seen, total = 0, 0.0
        for batch in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch["x"]).squeeze(-1), batch["y"])
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
            seen += len(batch["y"])
            total += loss.item() * len(batch["y"])
        mean = accelerator.gather(torch.tensor([total / seen])).mean()
        accelerator.print(f"epoch {epoch} loss {mean:.4f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
