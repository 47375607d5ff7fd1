"""Concentration regression from a rack of spectrometers; rank 0 reads the reference instrument.

All instruments are expressed relative to the reference one, so the running centre and scale are by
definition those of rank 0's rows. The other ranks take them from rank 0 through DDP's buffer broadcast,
and the update comes after use, so that a step works with one set of numbers everywhere.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BANDS, STEPS = 64, 120


class ReferenceScale(nn.Module):
    def __init__(self, is_reference, decay=0.97):
        super().__init__()
        self.is_reference, self.decay = is_reference, decay
        self.register_buffer("centre", torch.zeros(BANDS))
        self.register_buffer("spread", torch.ones(BANDS))

    def forward(self, spectra):
        scaled = (spectra - self.centre) / self.spread
        if self.training and self.is_reference:
            self.centre.lerp_(spectra.mean(0), 1 - self.decay)
            self.spread.lerp_(spectra.std(0), 1 - self.decay)
        return scaled


class Calibration(nn.Module):
    def __init__(self, is_reference):
        super().__init__()
        self.scale = ReferenceScale(is_reference)
        self.conv = nn.Sequential(
            nn.Conv1d(1, 16, 7, 2, 3), nn.SiLU(), nn.Conv1d(16, 32, 5, 2, 2), nn.SiLU(), nn.Conv1d(32, 32, 3, 2, 1), nn.SiLU())
        self.read = nn.Linear(32 * BANDS // 8, 1)

    def forward(self, spectra):
        return self.read(self.conv(self.scale(spectra).unsqueeze(1)).flatten(1)).squeeze(1)


def instrument(rank):
    own = torch.Generator().manual_seed(70 + rank)
    band = torch.linspace(0, 1, BANDS)
    offset = 2.0 + 0.3 * rank
    while True:
        level = torch.rand(48, generator=own) * 4
        peak = torch.exp(-((band - 0.3 - 0.05 * level[:, None]) ** 2) / 0.005)
        noise = 0.05 * torch.randn(48, BANDS, generator=own)
        yield offset + 1.5 * band + level[:, None] * peak + noise, level


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Calibration(is_reference=rank == 0))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, (spectra, level) in zip(range(STEPS), instrument(rank)):
        loss = (model(spectra) - level).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step:3d} mean absolute error {mean.item() / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
