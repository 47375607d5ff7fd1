import argparse

import torch
import torch.nn as nn
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, TensorDataset


def build():
    return nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))


def toy(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, (x[:, 0] * x[:, 1]).unsqueeze(-1))


def phase_one(accelerator, model, optimizer, loader, epochs):
    for epoch in range(epochs):
        seen = 0
        with Join([model]):
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                seen += len(x)
        total = accelerator.gather(torch.tensor([seen])).sum().item()
        accelerator.print(f"phase 1 epoch {epoch}: {total} samples", flush=True)


def phase_two(accelerator, model, optimizer, loader, epochs):
    updates = 0
    for epoch in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    updates += 1
                optimizer.step()
                optimizer.zero_grad()
    accelerator.print(f"phase 2: {updates} updates", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
    set_seed(3)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    uneven = DataLoader(toy(8 * 41, 1), batch_size=args.batch)
    even = DataLoader(toy(8 * 100, 2), batch_size=args.batch, shuffle=True)
    model, optimizer, uneven, even = accelerator.prepare(model, optimizer, uneven, even)
    phase_one(accelerator, model, optimizer, uneven, epochs=4)
    accelerator.gradient_accumulation_steps = 3
    phase_two(accelerator, model, optimizer, even, epochs=4)
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
