import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from coder import Coder
from fit import fit


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(66)
    g = torch.Generator().manual_seed(1)
    z = torch.randn(512, 4, generator=g)
    ds = TensorDataset(torch.tanh(z @ torch.randn(4, 20, generator=g)))
    loader = DataLoader(ds, batch_size=32, sampler=DistributedSampler(ds, seed=12), drop_last=True)
    model = DDP(Coder(20, 5))
    fit(model, loader, epochs=5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
