import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from domains import Encoder, domain_state, scanner


def main():
    p = argparse.ArgumentParser("one scanner per worker, shared weights, own statistics")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "scanner_models"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    domain = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Encoder(), broadcast_buffers=False)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = scanner(domain)
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True, drop_last=True,
                        generator=torch.Generator().manual_seed(domain))
    for epoch in range(args.epochs):
        model.train()
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            acc = (model.module(x).argmax(1) == y).float().mean()
        print(f"epoch {epoch} scanner {domain} acc {acc:.3f}", flush=True)
    os.makedirs(args.out, exist_ok=True)
    torch.save(domain_state(model.module), os.path.join(args.out, f"stats_{domain}.pt"))
    if domain == 0:
        torch.save(dict(model.module.named_parameters()), os.path.join(args.out, "weights.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
