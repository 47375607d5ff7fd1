import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def ddp_setup(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


class Trainer:
    def __init__(self, model, loader, optimizer, rank, save_every):
        self.rank = rank
        self.model = DDP(model)
        self.loader = loader
        self.optimizer = optimizer
        self.save_every = save_every

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _run_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        losses = [self._run_batch(x, y) for x, y in self.loader]
        print(f"[{self.rank}] epoch {epoch} steps {len(losses)} loss {losses[-1]:.4f}", flush=True)

    def train(self, epochs):
        for epoch in range(epochs):
            self._run_epoch(epoch)
            if self.rank == 0 and epoch % self.save_every == 0:
                torch.save(self.model.module.state_dict(), "/tmp/elm_snapshot.pt")


def load_objects():
    torch.manual_seed(0)
    x = torch.rand(512, 20)
    dataset = TensorDataset(x, x.mean(1, keepdim=True))
    model = nn.Linear(20, 1)
    return dataset, model, torch.optim.SGD(model.parameters(), lr=1e-1)


def main(rank, world_size, args):
    ddp_setup(rank, world_size)
    dataset, model, optimizer = load_objects()
    loader = DataLoader(dataset, args.batch_size, sampler=DistributedSampler(dataset))
    Trainer(model, loader, optimizer, rank, args.save_every).train(args.total_epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("--total-epochs", type=int, default=5)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), args)
