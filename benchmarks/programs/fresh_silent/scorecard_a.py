import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Blobs(Dataset):
    def __init__(self, size, seed, classes=5, dim=12):
        g = torch.Generator().manual_seed(seed)
        centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(99)) * 1.2
        self.y = torch.randint(0, classes, (size,), generator=g)
        self.x = centres[self.y] + torch.randn(size, dim, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]}


def evaluate(accelerator, model, loader):
    model.eval()
    predictions, references = [], []
    with torch.no_grad():
        for batch in loader:
            guess = model(batch["x"]).argmax(dim=-1)
            guess, truth = accelerator.gather((guess, batch["y"]))
            predictions.append(guess)
            references.append(truth)
    predictions, references = torch.cat(predictions), torch.cat(references)
    model.train()
    return (predictions == references).float().mean().item(), len(references)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(19)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train_loader = DataLoader(Blobs(640, seed=1), batch_size=args.batch_size, shuffle=True)
    eval_loader = DataLoader(Blobs(149, seed=2), batch_size=args.batch_size)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)

    for epoch in range(args.epochs):
        train_loader.set_epoch(epoch)
        for batch in train_loader:
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accuracy, seen = evaluate(accelerator, model, eval_loader)
        accelerator.print(f"epoch {epoch}: accuracy {accuracy:.4f} over {seen}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
