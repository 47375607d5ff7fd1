import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from density import Flow
from sync import mean_gradients


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(27)
    g = torch.Generator().manual_seed(15)
    base = torch.randn(576, 8, generator=g)
    ds = TensorDataset(base @ torch.randn(8, 8, generator=g) + 1.0)
    loader = DataLoader(ds, batch_size=24, sampler=DistributedSampler(ds, seed=30), drop_last=True)
    model = DDP(Flow(8, 3))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for (x,) in loader:
            opt.zero_grad()
            loss = model.module.negative_log_likelihood(x)
            loss.backward()
            mean_gradients(model.module)
            opt.step()
            total += loss.detach()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} nll {float(total) / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
