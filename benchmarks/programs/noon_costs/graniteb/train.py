import argparse
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from distrib import broadcast_parameters, init_distributed, reduce_gradients, reduce_value
from wavenet import Glow, glow_loss


class MelClips(Dataset):
    def __init__(self, n, frames=48):
        g = torch.Generator().manual_seed(0)
        t = torch.arange(frames * 8) / 8
        f = torch.rand(n, 1, generator=g) + 0.05
        wave = torch.sin(f * t) + 0.1 * torch.randn(n, frames * 8, generator=g)
        self.audio = wave.view(n, frames, 8).transpose(1, 2).contiguous()
        spec = torch.fft.rfft(self.audio, dim=1).abs()
        self.mel = torch.nn.functional.pad(spec, (0, 0, 0, 16 - spec.shape[1]))

    def __len__(self):
        return len(self.audio)

    def __getitem__(self, i):
        return self.audio[i], self.mel[i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--log-every", type=int, default=10)
    args = ap.parse_args()
    rank, world = init_distributed()
    torch.manual_seed(1234)
    model = Glow()
    broadcast_parameters(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    data = MelClips(288)
    sampler = DistributedSampler(data, seed=9)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    it, t0 = 0, time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for audio, mel in loader:
            optimizer.zero_grad()
            loss = glow_loss(*model(audio, mel))
            loss.backward()
            reduce_gradients(model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            it += 1
            if it % args.log_every == 0:
                value = reduce_value(loss)
                if rank == 0:
                    print(f"{it}:\t{value:.6f}\t{it / (time.time() - t0):.2f} it/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
