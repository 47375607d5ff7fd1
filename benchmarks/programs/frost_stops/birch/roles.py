import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

DIM, ACTIONS, ROLL = 6, 4, 32
GO, QUIT = 1, 0


def policy():
    return nn.Sequential(nn.Linear(DIM, 32), nn.Tanh(), nn.Linear(32, ACTIONS))


def play(net, g):
    """One rollout of a contextual bandit whose best arm is the sign pattern of two features."""
    obs = torch.randn(ROLL, DIM, generator=g)
    act = torch.multinomial(net(obs).softmax(-1), 1, generator=g).squeeze(1)
    best = (obs[:, 0] > 0).long() * 2 + (obs[:, 1] > 0).long()
    return obs, act, (act == best).float()


def actor(rank, quota):
    net = policy()
    flat = parameters_to_vector(net.parameters()).detach().clone()
    g = torch.Generator().manual_seed(rank)
    for n in range(quota):
        dist.recv(flat, src=0)
        vector_to_parameters(flat, net.parameters())
        with torch.no_grad():
            obs, act, rew = play(net, g)
        time.sleep(0.02 * rank)
        last = n == quota - 1
        dist.send(torch.cat([obs, act[:, None].float(), rew[:, None]], 1), dst=0)
        dist.send(torch.tensor([QUIT if last else GO]), dst=0)


def learner(actors, lr=0.02):
    torch.manual_seed(0)
    net = policy()
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    active = list(actors)
    buf = torch.empty(ROLL, DIM + 2)
    word = torch.empty(1, dtype=torch.long)
    rounds = 0
    while active:
        flat = parameters_to_vector(net.parameters()).detach()
        for a in active:
            dist.send(flat, dst=a)
        parts, left = [], []
        for a in active:
            dist.recv(buf, src=a)
            parts.append(buf.clone())
            dist.recv(word, src=a)
            if word.item() == QUIT:
                left.append(a)
        obs, act, rew = torch.cat(parts).split([DIM, 1, 1], 1)
        logp = F.log_softmax(net(obs), -1).gather(1, act.long())
        loss = -((rew - rew.mean()) * logp).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        active = [a for a in active if a not in left]
        rounds += 1
        if rounds % 10 == 0 or left:
            print(f"round {rounds} reward {rew.mean().item():.3f} actors {active}", flush=True)
