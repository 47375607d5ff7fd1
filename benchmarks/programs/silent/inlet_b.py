import argparse
import json
import os
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class AsyncCheckpointer:
    def __init__(self, folder, upload_seconds):
        self.folder, self.upload_seconds = folder, upload_seconds
        self.thread = None
        os.makedirs(folder, exist_ok=True)

    def _write(self, state, path):
        with open(path + ".part", "wb") as f:
            torch.save(state, f)
        time.sleep(self.upload_seconds)
        os.replace(path + ".part", path)
        
    def save(self, model, opt, epoch):
        self.wait()
        state = {"model": {k: v.clone() for k, v in model.state_dict().items()},
                 "opt": {"state": opt.state_dict()["state"], "param_groups": opt.state_dict()["param_groups"]},
                 "epoch": epoch}
        name = f"epoch_{epoch}.pt"
        self.thread = threading.Thread(target=self._write, args=(state, os.path.join(self.folder, name)), daemon=True)
        self.thread.start()
        with open(os.path.join(self.folder, "latest.json"), "w") as f:
            json.dump({"file": name}, f)

    def wait(self):
        if self.thread is not None:
            self.thread.join()

    def restore(self, net, opt):
        pointer = os.path.join(self.folder, "latest.json")
        if not os.path.exists(pointer):
            return 0
        path = os.path.join(self.folder, json.load(open(pointer))["file"])
        if not os.path.exists(path):
            return 0
        ckpt = torch.load(path, map_location="cpu")
        net.load_state_dict(ckpt["model"])
        opt.load_state_dict(ckpt["opt"])
        return ckpt["epoch"] + 1


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--upload-seconds", type=float, default=2.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    ckpt = AsyncCheckpointer("inlet_ckpt", args.upload_seconds)
    start = ckpt.restore(net, opt)
    dist.barrier()
    model = DDP(net)
    g = torch.Generator().manual_seed(15)
    x = torch.randn(240, 10, generator=g)
    ds = TensorDataset(x, (x @ torch.randn(10, 3, generator=g)).argmax(1))
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=8, sampler=sampler)
    for epoch in range(start, start + args.epochs):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(bx), by)
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            ckpt.save(net, opt, epoch)
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
