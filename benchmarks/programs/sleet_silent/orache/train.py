import argparse
import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from model import TwoTower, clip_loss

log = logging.getLogger(__name__)


class Captions(Dataset):
    def __init__(self, n, split_seed):
        g = torch.Generator().manual_seed(77)
        self.palette = torch.randn(25, 3, 16, 16, generator=g)
        g = torch.Generator().manual_seed(split_seed)
        self.topics = torch.randint(0, 25, (n, 2), generator=g)
        self.img = self.palette[self.topics].sum(1) + 0.3 * torch.randn(n, 3, 16, 16, generator=g)
        self.txt = torch.cat([self.topics[:, :1] * 8, self.topics[:, 1:] * 8], 1).repeat(1, 3) + torch.randint(0, 8, (n, 6), generator=g)

    def __len__(self):
        return len(self.img)

    def __getitem__(self, i):
        return self.img[i], self.txt[i]


def recall(model, data):
    model.eval()
    with torch.no_grad():
        a, b, _ = model(data.img, data.txt)
        hit = (a @ b.t()).topk(5, 1).indices.eq(torch.arange(len(a)).unsqueeze(1)).any(1)
    model.train()
    return hit.float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--local-batch", type=int, default=24)
    p.add_argument("--lr", type=float, default=1.5e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(3)
    train, test = Captions(720, 1), Captions(96, 2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.local_batch, sampler=sampler, drop_last=True)
    net = DistributedDataParallel(TwoTower())
    decay = [q for q in net.parameters() if q.ndim > 1]
    rest = [q for q in net.parameters() if q.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for img, txt in loader:
            loss = clip_loss(*net(img, txt))
            opt.zero_grad()
            loss.backward()
            opt.step()
        log.info("epoch %d loss %.3f scale %.2f R@5 %.3f", epoch, loss.item(), net.module.logit_scale.exp().item(), recall(net.module, test))
    if dist.get_rank() == 0:
        torch.save(net.module.state_dict(), "towers.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
