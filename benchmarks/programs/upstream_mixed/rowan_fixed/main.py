"""Two towers trained with a contrastive loss over the whole batch."""
import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from loss import PairLoss


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 24))
        self.text = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 24))
        self.loss = PairLoss()

    def forward(self, image, text):
        return self.loss(self.image(image), self.text(text))


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(4)
    model = DDP(Towers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(44 + rank)
    fixed = torch.Generator().manual_seed(45)
    to_image, to_text = torch.randn(8, 48, generator=fixed), torch.randn(8, 20, generator=fixed)
    for step in range(40):
        z = torch.randn(16, 8, generator=gen)
        loss = model(z @ to_image, z @ to_text)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
