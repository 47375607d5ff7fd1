"""Actor-learner policy gradient on a small navigation task.   python train.py --actors 2

Rank 0 learns, the other ranks play. Episodes travel as Python objects, weights as one flat tensor.
"""
import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

from env import GridWorld

LEARNER = 0


def policy():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 192), nn.Tanh(), nn.Linear(192, 192), nn.Tanh(), nn.Linear(192, 4))


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def unflat(model, vec):
    off = 0
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(vec[off:off + p.numel()].view_as(p))
            off += p.numel()


def play(net, env, episodes):
    out = []
    for _ in range(episodes):
        obs, acts, rews = [], [], []
        o, done = env.reset(), False
        while not done:
            with torch.no_grad():
                a = int(torch.distributions.Categorical(logits=net(o)).sample())
            obs.append(o)
            acts.append(a)
            o, r, done = env.step(a)
            rews.append(r)
        out.append((torch.stack(obs), acts, rews))
    return out


def learner(args, world):
    net = policy()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    baseline, t0 = 0.0, time.time()
    for update in range(1, args.updates + 1):
        batch = []
        for src in range(1, world):
            box = [None]
            dist.recv_object_list(box, src=src)
            batch += box[0]
        losses, returns = [], []
        for obs, acts, rews in batch:
            ret = sum(rews)
            returns.append(ret)
            logp = torch.log_softmax(net(obs), -1)[range(len(acts)), acts]
            losses.append(-(ret - baseline) * logp.sum() / 20)
        loss = torch.stack(losses).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        mean = sum(returns) / len(returns)
        baseline = 0.9 * baseline + 0.1 * mean
        vec = torch.cat([flat(net), torch.tensor([float(update < args.updates)])])
        for dst in range(1, world):
            dist.send(vec, dst)
        if update % 20 == 0:
            print(f"[learner] update {update} mean return {mean:.3f} episodes {len(batch)} t={time.time() - t0:.0f}s",
                  flush=True)


def actor(args, rank):
    env = GridWorld(seed=rank, assets=args.assets)  # loading the maps takes a while
    net = policy()
    size = flat(net).numel()
    rounds, alive = 0, True
    while alive:
        # the second actor runs on the slower half of the machine and plays less
        n = args.episodes if rank == 1 else max(1, args.episodes // 3)
        dist.send_object_list([play(net, env, n)], dst=LEARNER)
        vec = torch.empty(size + 1)
        dist.recv(vec, LEARNER)
        unflat(net, vec[:-1])
        alive = bool(vec[-1] > 0)
        rounds += 1
        if rank == 2 and rounds == args.updates // 2:
            env.reload(args.assets)


def worker(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    world = args.actors + 1
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(1000 + rank)
    learner(args, world) if rank == LEARNER else actor(args, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--actors", type=int, default=2)
    ap.add_argument("--updates", type=int, default=80)
    ap.add_argument("--episodes", type=int, default=6)
    ap.add_argument("--assets", type=float, default=12.0, help="seconds an environment needs to load its maps")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(args, port), nprocs=args.actors + 1)
