from itertools import islice


import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def lengths_collate(batch):
    xs, ys = zip(*batch)
    return torch.stack(xs), torch.stack(ys)


class Accumulating:
    accum = 4

    def __init__(self):
        torch.manual_seed(1)
        self.model = DDP(nn.Sequential(nn.Linear(6, 20), nn.GELU(), nn.Linear(20, 1)))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=4e-3)
        g = torch.Generator().manual_seed(6)
        x = torch.randn(2 * 4 * 11, 6, generator=g)
        data = TensorDataset(x, x.prod(1, keepdim=True))
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, 4, sampler=self.sampler, collate_fn=lengths_collate)

    def windows(self):
        it = iter(self.loader)
        while chunk := list(islice(it, self.accum)):
            yield chunk

    def run_window(self, chunk):
        self.opt.zero_grad(set_to_none=True)
        for x, y in chunk[:-1]:
            with self.model.no_sync():
                (F.mse_loss(self.model(x), y) / len(chunk)).backward()
        x, y = chunk[-1]
        loss = F.mse_loss(self.model(x), y)
        (loss / len(chunk)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        return loss.detach()

    def fit(self, epochs=9):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for chunk in self.windows():
                loss = self.run_window(chunk)
            if epoch % 4 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} last loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Accumulating().fit()
    dist.destroy_process_group()
