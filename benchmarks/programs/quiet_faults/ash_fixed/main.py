import json
import logging
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from records import DEVICES, KINDS, OUTCOMES, Encoder, read_logs, write_logs


@dataclass(frozen=True)
class Settings:
    epochs: int = 4
    batch_size: int = 20
    embed: int = 24
    hidden: int = 64
    lr: float = 5e-3
    seed: int = 2


class OutcomeModel(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.kind = nn.Embedding(len(KINDS), s.embed)
        self.device = nn.Embedding(len(DEVICES), s.embed)
        self.mlp = nn.Sequential(
            nn.Linear(2 * s.embed + 1, s.hidden), nn.ReLU(), nn.Linear(s.hidden, len(OUTCOMES))
        )

    def forward(self, kind, device, amount):
        return self.mlp(torch.cat([self.kind(kind), self.device(device), amount[:, None]], dim=1))


def as_dataset(encoder, rows):
    kinds, devices, amounts, outcomes = encoder.encode(rows)
    return TensorDataset(
        torch.tensor(kinds), torch.tensor(devices), torch.tensor(amounts), torch.tensor(outcomes)
    )


def prepare(folder, rank, world):
    paths = sorted(Path(folder).glob("events-*.csv"))
    mine = read_logs(paths[rank::world])
    encoder = Encoder().fit(read_logs(paths))
    return encoder, as_dataset(encoder, mine)


def train_one_epoch(model, loader, optimizer):
    total = torch.zeros(3)
    for kind, device, amount, outcome in loader:
        logits = model(kind, device, amount)
        loss = F.cross_entropy(logits, outcome)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        hit = (logits.argmax(1) == outcome).sum().item()
        total += torch.tensor([loss.item() * len(outcome), float(hit), float(len(outcome))])
    dist.all_reduce(total)
    return (total[0] / total[2]).item(), (total[1] / total[2]).item()


@torch.no_grad()
def evaluate(net, dataset):
    net.eval()
    kind, device, amount, outcome = dataset.tensors
    hit = (net(kind, device, amount).argmax(1) == outcome).sum().item()
    net.train()
    out = torch.tensor([float(hit), float(len(outcome))])
    dist.all_reduce(out)
    return (out[0] / out[1]).item()


def main():
    logging.basicConfig(level=logging.INFO, format="[%(levelname)s] %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    s = Settings()
    box = [None]
    if rank == 0:
        box = [tempfile.mkdtemp(prefix="events_")]
        os.makedirs(os.path.join(box[0], "val"))
        write_logs(box[0], files=2 * world, rows=240)
        write_logs(os.path.join(box[0], "val"), files=world, rows=80, seed=6)
    dist.broadcast_object_list(box, src=0)
    folder = box[0]
    encoder, train = prepare(folder, rank, world)
    val_paths = sorted((Path(folder) / "val").glob("events-*.csv"))
    val = as_dataset(encoder, read_logs(val_paths[rank::world]))

    torch.manual_seed(s.seed)
    net = OutcomeModel(s)
    model = DDP(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=s.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.4)
    order = torch.Generator().manual_seed(s.seed + 10 * (rank + 1))
    loader = DataLoader(train, batch_size=s.batch_size, shuffle=True, generator=order)
    for epoch in range(s.epochs):
        loss, acc = train_one_epoch(model, loader, optimizer)
        scheduler.step()
        val_acc = evaluate(net, val)
        if rank == 0:
            logging.info("epoch %d loss %.4f acc %.3f val acc %.3f", epoch, loss, acc, val_acc)
    if rank == 0:
        out = Path("runs") / "outcomes"
        out.mkdir(parents=True, exist_ok=True)
        torch.save(net.state_dict(), out / "model.pt")
        (out / "tables.json").write_text(json.dumps({"settings": asdict(s), "tables": encoder.tables}))
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
