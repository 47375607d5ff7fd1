import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from phases import Phases


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    g = torch.Generator().manual_seed(77)
    x = torch.randn(720, 16, generator=g)
    lengths = torch.randint(2, 9, (720,), generator=g)
    ds = TensorDataset(x, x[:, :4].sum(1).sin(), lengths)
    loader = DataLoader(ds, batch_size=20, sampler=DistributedSampler(ds, seed=3), drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9)
    phases = Phases(switch_at=24)
    model.register_comm_hook(phases, Phases.reduce)
    step = 0
    for epoch in range(4):
        loader.sampler.set_epoch(epoch)
        for x, y, n in loader:
            phases.at(step)
            opt.zero_grad()
            err = nn.functional.mse_loss(model(x).squeeze(1), y, reduction="none")
            loss = phases.objective(err, n.float())
            loss.backward()
            opt.step()
            step += 1
        if dist.get_rank() == 0:
            print(f"epoch {epoch} objective {float(loss.detach()):.4f} {'tokens' if phases.weighted else 'mean'}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
