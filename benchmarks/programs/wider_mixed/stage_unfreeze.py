"""ULMFiT-like schedule: the head first, then one block more per stage, with its own optimizer and wrapper."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Sentences(Dataset):
    def __init__(self, n=384, vocab=100, length=20):
        g = torch.Generator().manual_seed(5)
        self.x = torch.randint(0, vocab, (n, length), generator=g)
        self.y = (self.x.float().mean(1) > vocab / 2).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Encoder(nn.Module):
    def __init__(self, vocab=100, dim=32, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim)) for _ in range(depth))
        self.head = nn.Linear(dim, 2)

    def forward(self, x):
        h = self.embed(x)
        for b in self.blocks:
            h = h + b(h)
        return self.head(h.mean(1))


class GradualTrainer:
    def __init__(self, model, dataset):
        self.model = model
        self.sampler = DistributedSampler(dataset)
        self.loader = DataLoader(dataset, batch_size=16, sampler=self.sampler)
        self.epoch = 0

    def set_trainable(self, stage):
        self.model.requires_grad_(False)
        groups = [self.model.head] + list(self.model.blocks[::-1])[:stage]
        for m in groups:
            m.requires_grad_(True)
        return groups

    def run_stage(self, stage, epochs=2):
        groups = self.set_trainable(stage)
        wrapped = DDP(self.model)
        opt = torch.optim.AdamW([{"params": m.parameters(), "lr": 3e-3 / (2.6 ** i)} for i, m in enumerate(groups)])
        for _ in range(epochs):
            self.sampler.set_epoch(self.epoch)
            self.epoch += 1
            for x, y in self.loader:
                opt.zero_grad(set_to_none=True)
                loss = nn.functional.cross_entropy(wrapped(x), y)
                loss.backward()
                opt.step()
        n = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        if dist.get_rank() == 0:
            print(f"stage {stage}: {n} trainable, loss {loss.item():.3f}", flush=True)
        del wrapped


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    trainer = GradualTrainer(Encoder(), Sentences())
    for stage in range(4):
        trainer.run_stage(stage)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
