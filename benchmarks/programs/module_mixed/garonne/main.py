import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader

from episodes import EpisodeTable, FrameDataset
from prepare import Launcher

EPOCHS, BATCH = 1, 8


class PolicyHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 64), nn.Mish(), nn.Linear(64, 64), nn.Mish())
        self.mean = nn.Linear(64, 2)

    def forward(self, obs):
        return self.mean(self.trunk(obs)).tanh()


def main():
    dist.init_process_group("gloo")
    launcher = Launcher()
    torch.manual_seed(1)
    table = EpisodeTable.load().shard(launcher.world, launcher.rank)
    dataset = FrameDataset(table)
    policy = PolicyHead()
    opt = torch.optim.Adam(policy.parameters(), lr=2e-3)
    policy, loader = launcher.prepare(policy, DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True))
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            loss = (policy(batch["obs"]) - batch["action"]).abs().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if launcher.rank == 0:
            print(f"epoch {epoch} l1 {loss.item():.4f} batches {len(loader)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
