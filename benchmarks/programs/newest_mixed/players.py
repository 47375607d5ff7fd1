"""Queue-fed policy learning: process 0 learns, the others play with slightly old weights."""
import collections
import random
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

OBS, ACT, HORIZON, UPDATES = 4, 3, 16, 120
ROW = OBS + 1 + 1 + OBS


def qnet():
    return nn.Sequential(nn.Linear(OBS, 48), nn.ReLU(), nn.Linear(48, ACT))


def env_step(s, a):
    force = torch.tensor([-1.0, 0.0, 1.0])[a]
    nxt = s.clone()
    nxt[1] = 0.9 * s[1] + 0.1 * force + 0.02 * torch.randn(())
    nxt[0] = s[0] + nxt[1]
    nxt[2:] = s[:2]
    return nxt, -nxt[0].abs().clamp(max=3)


def learner(world):
    torch.manual_seed(0)
    net, target = qnet(), qnet()
    target.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    replay = collections.deque(maxlen=200_000)
    traj = torch.empty(HORIZON, ROW)
    for update in range(UPDATES):
        src = dist.recv(traj)
        replay.extend(traj.clone())
        if len(replay) >= 64:
            for _ in range(2):
                b = torch.stack(random.sample(replay, 64))
                s, a, r, n = b[:, :OBS], b[:, OBS].long(), b[:, OBS + 1], b[:, OBS + 2:]
                with torch.no_grad():
                    goal = r + 0.95 * target(n).max(1).values
                q = net(s).gather(1, a[:, None]).squeeze(1)
                loss = nn.functional.smooth_l1_loss(q, goal)
                opt.zero_grad()
                loss.backward()
                opt.step()
        if update % 20 == 0:
            target.load_state_dict(net.state_dict())
            print(f"update {update} replay {len(replay)} from {src} return {traj[:, OBS + 1].mean():.3f}", flush=True)
        stop = 1.0 if update >= UPDATES - (world - 1) else 0.0
        dist.send(torch.cat([torch.tensor([stop]), parameters_to_vector(net.parameters()).detach()]), dst=src)


def actor(rank):
    torch.manual_seed(rank)
    net = qnet()
    inbox = torch.empty(1 + sum(p.numel() for p in net.parameters()))
    s, eps = torch.randn(OBS), 0.4 / rank
    stop = False
    while not stop:
        rows = []
        for _ in range(HORIZON):
            with torch.no_grad():
                a = random.randrange(ACT) if random.random() < eps else int(net(s).argmax())
            n, r = env_step(s, a)
            rows.append(torch.cat([s, torch.tensor([float(a), float(r)]), n]))
            s = torch.randn(OBS) if n[0].abs() > 3 else n
        dist.send(torch.stack(rows), dst=0)
        dist.recv(inbox, src=0)
        stop = bool(inbox[0])
        vector_to_parameters(inbox[1:].clone(), net.parameters())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    random.seed(dist.get_rank())
    learner(dist.get_world_size()) if dist.get_rank() == 0 else actor(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()
