import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from stream import WaveStream


def network():
    return nn.Sequential(nn.Unflatten(1, (1, 48)),
                         nn.Conv1d(1, 16, 5, padding=2, padding_mode="circular"), nn.ReLU(),
                         nn.Conv1d(16, 32, 5, stride=2, padding=2, padding_mode="circular"), nn.ReLU(),
                         nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, 5))


def options():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--packs", type=int, default=12)
    ap.add_argument("--views", type=int, default=2)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--loader-procs", type=int, default=2)
    ap.add_argument("--seed", type=int, default=4)
    return ap.parse_args()


def main():
    opt = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(name)s: %(message)s")
    log = logging.getLogger("waves")
    torch.manual_seed(opt.seed)
    stream = WaveStream(opt.packs, rank, world, opt.views, opt.seed)
    loader = DataLoader(stream, batch_size=opt.batch, num_workers=opt.loader_procs, drop_last=True)
    net = DistributedDataParallel(network())
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for r in range(opt.rounds):
        stream.round = r
        good = seen = 0
        for x, y in loader:
            out = net(x)
            loss = nn.functional.cross_entropy(out, y)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            good += (out.argmax(1) == y).sum().item()
            seen += len(y)
        tally = torch.tensor([good, seen])
        dist.all_reduce(tally)
        log.info("round %d: acc %.3f over %d views", r, tally[0] / tally[1], tally[1])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
