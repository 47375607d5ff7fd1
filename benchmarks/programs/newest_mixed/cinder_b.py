import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_cosine_schedule_with_warmup

EPOCHS, BATCH = 3, 16


class Net(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.inp = nn.Linear(30, dim)
        self.mid = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, 9)

    def forward(self, x):
        h = self.inp(x)
        for layer in self.mid:
            h = h + F.gelu(layer(h))
        return self.out(h)


def make_loader():
    g = torch.Generator().manual_seed(8)
    x = torch.randn(1600, 30, generator=g)
    y = (x.sin() @ torch.randn(30, 9, generator=g)).argmax(-1)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True, drop_last=True)


def build(accelerator):
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, opt, loader = accelerator.prepare(model, opt, make_loader())
    total = EPOCHS * len(loader)
    sched = get_cosine_schedule_with_warmup(opt, num_warmup_steps=total // 10, num_training_steps=total)
    sched = accelerator.prepare(sched)
    return model, opt, loader, sched


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    model, opt, loader, sched = build(accelerator)
    lrs = []
    for epoch in range(EPOCHS):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
            lrs.append(opt.param_groups[0]["lr"])
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
    tail = sorted((round(i / len(lrs), 2), round(v, 6)) for i, v in enumerate(lrs) if i % 15 == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
