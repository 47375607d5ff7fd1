import argparse
import os

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from timm.utils import ModelEmaV3
from torch.utils.data import DataLoader, TensorDataset


class Denoiser(nn.Module):
    def __init__(self, d=2, h=96):
        super().__init__()
        self.t = nn.Embedding(50, h)
        self.inp = nn.Linear(d, h)
        self.net = nn.Sequential(nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, d))

    def forward(self, x, t):
        return self.net(self.inp(x) + self.t(t))


def spiral(n=2048):
    g = torch.Generator().manual_seed(2)
    u = torch.rand(n, generator=g) * 6
    return TensorDataset(torch.stack([u.cos() * u, u.sin() * u], 1) / 3)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--ema-decay", type=float, default=0.98)
    ap.add_argument("--out", default="diffusion_out")
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(5, device_specific=True)
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(spiral(), batch_size=32, shuffle=True, drop_last=True)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    ema = ModelEmaV3(accelerator.unwrap_model(model), decay=args.ema_decay) if accelerator.is_main_process else None
    alpha = torch.linspace(0.99, 0.01, 50)
    step = 0
    while step < args.steps:
        for (x,) in loader:
            t = torch.randint(0, 50, (len(x),))
            noise = torch.randn_like(x)
            a = alpha[t].unsqueeze(1)
            loss = nn.functional.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
            if ema is not None:
                ema.update(accelerator.unwrap_model(model))
            step += 1
            if step % 40 == 0:
                accelerator.print(f"step {step} loss {loss.item():.4f}")
            if step >= args.steps:
                break
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"model": accelerator.get_state_dict(model), "ema": ema.module.state_dict()}, f"{args.out}/last.pt")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
