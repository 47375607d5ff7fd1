import copy


import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, o):
        return self.net(o)


class Actor:
    def __init__(self, rank):
        self.g = torch.Generator().manual_seed(rank)
        self.state = torch.randn(8, 3, generator=self.g)

    @torch.no_grad()
    def act(self, net, eps):
        greedy = net(self.state).argmax(1)
        explore = torch.rand(8, generator=self.g) < eps
        action = torch.where(explore, torch.randint(0, 2, (8,), generator=self.g), greedy)
        nxt = self.state + 0.3 * (action[:, None].float() * 2 - 1) + 0.05 * torch.randn(8, 3, generator=self.g)
        reward = -nxt.abs().sum(1, keepdim=True)
        row = torch.cat([self.state, action[:, None].float(), reward, nxt], 1)
        self.state = torch.where(nxt.abs().amax(1, keepdim=True) > 3, torch.randn(8, 3, generator=self.g), nxt)
        return row


def broadcast_policy(net):
    for p in net.parameters():
        dist.broadcast(p.data, src=0)


def learner_update(net, target, opt, replay, g):
    idx = torch.randint(0, len(replay), (32,), generator=g)
    b = replay[idx]
    q = net(b[:, :3]).gather(1, b[:, 3:4].long())
    with torch.no_grad():
        want = b[:, 4:5] + 0.9 * target(b[:, 5:]).amax(1, keepdim=True)
    loss = F.smooth_l1_loss(q, want)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    net, learner = QNet(), rank == 0
    broadcast_policy(net)
    actor = None if learner else Actor(rank)
    if learner:
        target = copy.deepcopy(net)
        opt = torch.optim.Adam(net.parameters(), lr=2e-3)
        g, replay = torch.Generator().manual_seed(99), torch.empty(0, 8)
    for it in range(30):
        rows = torch.zeros(8, 8) if learner else actor.act(net, eps=max(0.1, 1 - it / 20))
        parts = [torch.zeros(8, 8) for _ in range(world)] if learner else None
        dist.gather(rows, parts, dst=0)
        if learner:
            replay = torch.cat([replay] + parts[1:])[-512:]
            loss = learner_update(net, target, opt, replay, g)
            if it % 5 == 4:
                target.load_state_dict(net.state_dict())
            if it % 10 == 9:
                print(f"it {it} td {loss.item():.4f}", flush=True)
        if it % 2 == 1:
            broadcast_policy(net)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
