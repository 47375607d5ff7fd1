"""Two stages in one job: a codec for signal windows, then dynamics in its code space."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from models import Codec, Dynamics

LENGTH = 48


def signals(count, seed):
    gen = torch.Generator().manual_seed(seed)
    pitch = torch.rand(count, 1, generator=gen) * 0.2 + 0.05
    phase = torch.rand(count, 1, generator=gen) * 6.28
    drift = 1 + 0.3 * torch.rand(count, 1, generator=gen)
    t = torch.arange(4 * LENGTH)
    wave = torch.sin(pitch * t * drift + phase) + 0.05 * torch.randn(count, 4 * LENGTH, generator=gen)
    return wave.view(count, 4, LENGTH)


class Stage:
    """One wrapped network with its own optimizer and pass over the data."""

    def __init__(self, name, net, lr):
        self.name = name
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

    def run(self, loader, sampler, epochs, loss_of):
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            total = torch.zeros(1)
            for (wave,) in loader:
                loss = loss_of(self.model, wave)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.detach()
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                mean = total.item() / len(loader) / dist.get_world_size()
                print(f"{self.name} epoch {epoch} loss {mean:.5f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--codec-epochs", type=int, default=7)
    parser.add_argument("--dynamics-epochs", type=int, default=7)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--latent", type=int, default=8)
    parser.add_argument("--save", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "pipeline.pt"))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(9)
    data = TensorDataset(signals(args.count, seed=1))
    sampler = DistributedSampler(data, seed=5)
    loader = DataLoader(data, args.batch, sampler=sampler)
    codec = Stage("codec", Codec(LENGTH, args.latent), lr=2e-3)
    dynamics = Stage("dynamics", Dynamics(args.latent, 48), lr=2e-3)

    codec.run(loader, sampler, args.codec_epochs, lambda model, wave: F.mse_loss(model(wave), wave))

    # from here on the codec is a fixed function
    frozen = codec.model.module.eval()

    def predict(model, wave):
        with torch.no_grad():
            codes = frozen.encode(wave)
        return F.mse_loss(model(codes[:, :3]), codes[:, 3])

    dynamics.run(loader, sampler, args.dynamics_epochs, predict)

    test = signals(600, seed=2)[rank::world]
    with torch.no_grad():
        guess = frozen.decode(dynamics.model.module(frozen.encode(test[:, :3])))
        error = torch.stack([F.mse_loss(guess, test[:, 3]), F.mse_loss(test[:, 2], test[:, 3])])
    dist.all_reduce(error)
    if rank == 0:
        print(f"next window: error {error[0].item() / world:.4f}, copying the last one {error[1].item() / world:.4f}", flush=True)
        torch.save({"codec": frozen.state_dict(), "dynamics": dynamics.model.module.state_dict()}, args.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
