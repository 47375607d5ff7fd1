"""PPO with one learner process and the other processes as rollout workers."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F

from policy import ActorCritic, DriftEnv

OBS, ACTIONS = 4, 3


class WeightChannel:
    """Ships one flat vector of policy weights from the learner to the workers."""

    def __init__(self, model):
        self.flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def publish(self):
        dist.broadcast(self.flat, src=0)

    def receive(self, model):
        dist.broadcast(self.flat, src=0)
        offset = 0
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(self.flat[offset:offset + p.numel()].view_as(p))
                offset += p.numel()


class Rollout:
    FIELDS = ("obs", "act", "logp", "adv", "ret")

    @staticmethod
    def shape(args):
        n = args.horizon * args.envs
        return n, OBS + 4

    @torch.no_grad()
    def collect(self, model, env, args, gen):
        obs, act, logp, val, rew, done = [], [], [], [], [], []
        for _ in range(args.horizon):
            o = env.observe()
            logits, v = model(o)
            a = torch.multinomial(logits.softmax(-1), 1, generator=gen).squeeze(1)
            r, d = env.step(a)
            obs.append(o)
            act.append(a.float())
            logp.append(logits.log_softmax(-1).gather(1, a[:, None]).squeeze(1))
            val.append(v)
            rew.append(r)
            done.append(d.float())
        last = model(env.observe())[1]
        adv, run = [], torch.zeros_like(last)
        for t in reversed(range(args.horizon)):
            nxt = last if t == args.horizon - 1 else val[t + 1]
            delta = rew[t] + args.gamma * nxt * (1 - done[t]) - val[t]
            run = delta + args.gamma * 0.95 * (1 - done[t]) * run
            adv.insert(0, run)
        adv = torch.stack(adv)
        ret = adv + torch.stack(val)
        cols = [torch.stack(obs).view(-1, OBS)] + [torch.stack(c).view(-1, 1) for c in (act, logp)]
        return torch.cat(cols + [adv.view(-1, 1), ret.view(-1, 1)], 1), torch.stack(rew).mean()


def learn(model, opt, batch, args):
    obs, act, logp, adv, ret = batch[:, :OBS], batch[:, OBS].long(), batch[:, OBS + 1], batch[:, OBS + 2], batch[:, OBS + 3]
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    ratio_gap = 0.0
    for _ in range(args.ppo_epochs):
        for idx in torch.randperm(len(batch)).split(args.minibatch):
            logits, v = model(obs[idx])
            lp = logits.log_softmax(-1)
            new = lp.gather(1, act[idx, None]).squeeze(1)
            ratio = (new - logp[idx]).exp()
            clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
            pg = -torch.min(ratio * adv[idx], clipped * adv[idx]).mean()
            entropy = -(lp.exp() * lp).sum(1).mean()
            loss = pg + 0.5 * F.mse_loss(v, ret[idx]) - 0.005 * entropy
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            ratio_gap = (ratio.detach() - 1).abs().mean().item()
    return ratio_gap


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=30)
    ap.add_argument("--horizon", type=int, default=64)
    ap.add_argument("--envs", type=int, default=32)
    ap.add_argument("--ppo-epochs", type=int, default=3)
    ap.add_argument("--minibatch", type=int, default=512)
    ap.add_argument("--gamma", type=float, default=0.97)
    ap.add_argument("--clip", type=float, default=0.2)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(31)
    model = ActorCritic(OBS, ACTIONS)
    channel = WeightChannel(model)
    rollout = Rollout()
    shape = rollout.shape(args)

    if rank == 0:
        opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    else:
        actor = copy.deepcopy(model).requires_grad_(False)
        env = DriftEnv(args.envs, seed=700 + rank)
        gen = torch.Generator().manual_seed(800 + rank)

    for it in range(args.iterations):
        if rank == 0:
            channel.publish()
            parts = [torch.zeros(shape) for _ in range(world)]
            rewards = [torch.zeros(()) for _ in range(world)]
            dist.gather(torch.zeros(shape), parts, dst=0)
            dist.gather(torch.zeros(()), rewards, dst=0)
            gap = learn(model, opt, torch.cat(parts[1:]), args)
            if it % 5 == 0 or it == args.iterations - 1:
                mean = torch.stack(rewards[1:]).mean().item()
                print(f"iter {it} reward {mean:.3f} ratio gap {gap:.3f}", flush=True)
        else:
            channel.receive(actor)
            batch, reward = rollout.collect(actor, env, args, gen)
            dist.gather(batch, dst=0)
            dist.gather(reward, dst=0)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
