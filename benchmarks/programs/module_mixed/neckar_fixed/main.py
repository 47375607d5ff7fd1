import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from actor import TrackActor, Tracker
from stats import Stats


class Crops(Dataset):
    def __init__(self, n=640, size=96):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        c = torch.rand(2, generator=g) * 0.6 + 0.2
        wh = torch.rand(2, generator=g) * 0.3 + 0.1
        ax = torch.linspace(0, 1, self.size)
        mask = ((ax[None] - c[0]).abs() < wh[0] / 2) & ((ax[:, None] - c[1]).abs() < wh[1] / 2)
        img = torch.randn(3, self.size, self.size, generator=g) * 0.2 + mask.float()
        return {"image": img, "box": torch.cat([c, wh]), "iou": wh.prod() * 4}


class LTRTrainer:
    def __init__(self, actor, loader, optimizer, print_interval=8):
        self.actor, self.loader, self.optimizer = actor, loader, optimizer
        self.print_interval = print_interval
        self.stats = Stats()

    def cycle_dataset(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        for i, data in enumerate(self.loader, 1):
            loss, stats = self.actor(data)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            stats["Train/lr"] = self.optimizer.param_groups[0]["lr"]
            self.stats.push(stats, len(data["image"]))
            if i % self.print_interval == 0 and dist.get_rank() == 0:
                print(f"[{epoch}:{i}] {self.stats.line()}", flush=True)

    def train(self, epochs):
        for epoch in range(epochs):
            self.cycle_dataset(epoch)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    ds = Crops()
    loader = DataLoader(ds, batch_size=16, sampler=DistributedSampler(ds, seed=6), drop_last=True)
    net = DDP(Tracker())
    actor = TrackActor(net, {"box": 2.0, "iou": 1.0})
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    LTRTrainer(actor, loader, opt).train(epochs=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
