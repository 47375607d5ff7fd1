"""Sequence autoencoder over two processes: the encoder LSTM on rank 0, the decoder LSTM on rank 1.

Recurrent gradients spike now and then, so each entry is limited to [-CLIP, CLIP].
"""
import math

import torch
import torch.distributed as dist
from torch import nn

CLIP, LATENT, STEPS, BATCH, LENGTH = 0.01, 24, 90, 48, 24


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(2, 64, batch_first=True)
        self.to_latent = nn.Linear(64, LATENT)

    def forward(self, series):
        _, (h, _) = self.rnn(series)
        return self.to_latent(h[-1])


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(LATENT, 64, batch_first=True)
        self.to_series = nn.Linear(64, 2)

    def forward(self, latent):
        out, _ = self.rnn(latent.unsqueeze(1).expand(-1, LENGTH, -1))
        return self.to_series(out)


def waves(gen):
    t = torch.linspace(0, 1, LENGTH)
    freq = 1 + 0.5 * torch.rand(BATCH, 1, generator=gen)
    phase = torch.rand(BATCH, 1, generator=gen)
    angle = 2 * math.pi * freq * t + phase
    return torch.stack([angle.sin(), angle.cos()], -1)


def encoder_side(gen):
    net = Encoder()
    opt = torch.optim.RMSprop(net.parameters(), lr=4e-3)
    for _ in range(STEPS):
        latent = net(waves(gen))
        dist.send(latent.detach(), 1)
        grad = torch.empty(BATCH, LATENT)
        dist.recv(grad, 1)
        opt.zero_grad()
        latent.backward(grad)
        nn.utils.clip_grad_value_(net.parameters(), CLIP)
        opt.step()


def decoder_side(gen):
    net = Decoder()
    opt = torch.optim.RMSprop(net.parameters(), lr=4e-3)
    for step in range(STEPS):
        target = waves(gen)
        latent = torch.empty(BATCH, LATENT)
        dist.recv(latent, 0)
        latent.requires_grad_()
        loss = (net(latent) - target).square().mean()
        opt.zero_grad()
        loss.backward()
        dist.send(latent.grad, 0)
        nn.utils.clip_grad_value_(net.parameters(), CLIP)
        opt.step()
        if step % 15 == 0:
            print(f"step {step} reconstruction {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    shared = torch.Generator().manual_seed(31)
    (encoder_side if dist.get_rank() == 0 else decoder_side)(shared)
    dist.destroy_process_group()
