import argparse
import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from moco import Contrast

log = logging.getLogger("pretrain")


def augment(img):
    if torch.rand(()) < 0.5:
        img = img.flip(-1)
    dy, dx = torch.randint(0, 5, (2,)).tolist()
    crop = img[:, dy:dy + 20, dx:dx + 20]
    return crop * (0.6 + 0.8 * torch.rand(3, 1, 1)) + 0.05 * torch.randn_like(crop)


class Pairs(Dataset):
    def __init__(self, n=384):
        g = torch.Generator().manual_seed(77)
        low = torch.randn(n, 3, 4, 4, generator=g)
        self.images = torch.nn.functional.interpolate(low, size=(24, 24), mode="bilinear")

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return augment(self.images[i]), augment(self.images[i])


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(args.seed)
    data = Pairs()
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    core = Contrast()
    # the negatives are private to each process, as in the single-node recipe
    model = DistributedDataParallel(core, broadcast_buffers=False)
    torch.manual_seed(args.seed + 1 + rank)
    opt = torch.optim.SGD(core.query.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for a, b in loader:
            loss = model(a, b)
            opt.zero_grad()
            loss.backward()
            opt.step()
        log.info("epoch %d  nce %.4f", epoch, loss.item())
    if rank == 0:
        torch.save({"encoder": core.query.state_dict()}, "encoder.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--seed", type=int, default=31)
    main(ap.parse_args())
