import argparse

import torch
import torch.distributed as dist
import torch.nn as nn

import pipeline


class Encoder(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, ch, 3, 2, 1), nn.ReLU(), nn.Conv2d(ch, ch, 3, 2, 1), nn.ReLU())

    def forward(self, x):
        return self.net(x)


class Decoder(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.net = nn.Sequential(nn.ConvTranspose2d(ch, ch, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(ch, 1, 4, 2, 1))

    def forward(self, h):
        return self.net(h)


def images(n, gen):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    c = torch.rand(n, 2, 1, 1, generator=gen) - 0.5
    return torch.exp(-6 * ((xx - c[:, :1, 0, 0, None]) ** 2 + (yy - c[:, 1:, 0, 0, None]) ** 2)).unsqueeze(1)


def main():
    p = argparse.ArgumentParser(description="auto-encoder, encoder and decoder in separate processes")
    p.add_argument("--steps", type=int, default=15)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--chunks", type=int, default=4)
    p.add_argument("--channels", type=int, default=8)
    a = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = Encoder(a.channels) if rank == 0 else Decoder(a.channels)
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    gen = torch.Generator().manual_seed(77)
    shape = (a.batch // a.chunks, a.channels, 4, 4)

    for step in range(a.steps):
        chunks = images(a.batch, gen).chunk(a.chunks)
        opt.zero_grad()
        if rank == 0:
            pipeline.first_stage_step(model, chunks, dst=1)
        else:
            loss = pipeline.second_stage_step(model, chunks, 0, shape, nn.functional.mse_loss)
            print(f"step {step} mse {loss:.4f}", flush=True)
        opt.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
