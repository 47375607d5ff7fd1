"""Class-balanced curriculum with Lightning: the pool grows every epoch, rare classes are drawn with replacement."""
import logging
import warnings

import lightning as L
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Graded(Dataset):
    def __init__(self, n=600):
        g = torch.Generator().manual_seed(8)
        self.y = (torch.rand(n, generator=g) ** 4 * 5).long()
        self.x = torch.randn(n, 10, generator=g)
        self.x[:, 0] += self.y
        self.x[:, 1] -= self.y.float() / 2
        self.difficulty = torch.rand(n, generator=g).sort().values

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class BalancedCurriculumSampler(Sampler):
    """One weighted draw with replacement, the same on all ranks, of which every rank keeps a stride."""

    def __init__(self, ds, per_rank, rank, world, stages=4):
        self.ds, self.per_rank, self.rank, self.world, self.stages = ds, per_rank, rank, world, stages
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.per_rank

    def __iter__(self):
        g = torch.Generator().manual_seed(1234 + self.epoch)
        pool = int(len(self.ds) * min(1.0, (self.epoch + 1) / self.stages))
        y = self.ds.y[:pool]
        w = 1.0 / torch.bincount(y, minlength=5).clamp_min(1)[y].float()
        draw = torch.multinomial(w, self.per_rank * self.world, replacement=True, generator=g)
        return iter(draw[self.rank::self.world].tolist())


class Grader(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5))

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} loss {self.trainer.callback_metrics['loss']:.3f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Data(L.LightningDataModule):
    def train_dataloader(self):
        ds = Graded()
        sampler = BalancedCurriculumSampler(ds, 160, self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(ds, batch_size=16, sampler=sampler)


def main():
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=5, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        use_distributed_sampler=False)
    trainer.fit(Grader(), datamodule=Data())
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
