"""Preemptible fine-tuning: the job stops at a step in mid-epoch, comes back and skips what it has already seen."""
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, Dataset

from loading import SeedableSampler, ShardLoader, skip_first_batches


class Reviews(Dataset):
    def __init__(self, n=240):
        g = torch.Generator().manual_seed(3)
        self.ids = torch.randint(0, 40, (n, 12), generator=g)
        self.y = (self.ids < 20).float().mean(1).gt(0.5).long()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.ids[i], self.y[i]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.EmbeddingBag(40, 24)
        self.fc = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, ids):
        return self.fc(self.emb(ids))


class Trainer:
    def __init__(self, out_dir, epochs=3, batch=10):
        self.ckpt = os.path.join(out_dir, "state.pt")
        self.epochs = epochs
        torch.manual_seed(0)
        self.model = DDP(Classifier())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        sampler = SeedableSampler(240, dist.get_rank(), dist.get_world_size(), seed=99)
        self.loader = ShardLoader(Reviews(), BatchSampler(sampler, batch, drop_last=True))
        self.global_step = 0

    def save(self):
        if dist.get_rank() == 0:
            torch.save({"model": self.model.module.state_dict(), "opt": self.opt.state_dict(), "step": self.global_step}, self.ckpt)
        dist.barrier()

    def resume(self):
        st = torch.load(self.ckpt, map_location="cpu")
        self.model.module.load_state_dict(st["model"])
        self.opt.load_state_dict(st["opt"])
        self.global_step = st["step"]

    def train(self, stop_at=None):
        per_epoch = len(self.loader)
        first, seen = divmod(self.global_step, per_epoch)
        for epoch in range(first, self.epochs):
            self.loader.set_epoch(epoch)
            batches = self.loader
            if epoch == first and seen:
                batches = skip_first_batches(self.loader, seen)
            for ids, y in batches:
                loss = nn.functional.cross_entropy(self.model(ids), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.global_step += 1
                if stop_at is not None and self.global_step == stop_at:
                    self.save()
                    return
            if dist.get_rank() == 0:
                print(f"epoch {epoch} step {self.global_step} loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    box = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    Trainer(box[0]).train(stop_at=19)
    again = Trainer(box[0])
    again.resume()
    again.train()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
