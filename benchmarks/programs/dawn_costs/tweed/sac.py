"""Continuous bandit with an actor and a critic; a part of the ranks later helps to evaluate."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn

STATE, ACTION, BATCH = 10, 3, 128
STEPS, EVAL_FROM, EVAL_EVERY = 240, 80, 40


def mlp(inp, out):
    return nn.Sequential(nn.Linear(inp, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, out))


class Environment:
    def __init__(self):
        self.target = torch.randn(STATE, ACTION, generator=torch.Generator().manual_seed(40)) / STATE ** 0.5

    def reward(self, state, action):
        return -(action - torch.tanh(state @ self.target)).pow(2).sum(-1, keepdim=True)


def average_gradients(params):
    params = list(params)
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, piece in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(piece.view_as(p))


def average_weights(module, group):
    size = dist.get_world_size(group)
    for p in module.parameters():
        dist.all_reduce(p.data, group=group)
        p.data /= size


@torch.no_grad()
def evaluate(actor, env, gen, group):
    state = torch.randn(512, STATE, generator=gen)
    score = env.reward(state, torch.tanh(actor(state))).mean()
    dist.all_reduce(score, group=group)
    return score.item() / dist.get_world_size(group)


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    evaluators = [0, 1]
    torch.manual_seed(17)
    actor, critic = mlp(STATE, ACTION), mlp(STATE + ACTION, 1)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=2e-3)
    env, gen = Environment(), torch.Generator().manual_seed(70 + rank)
    eval_group = swa_group = None

    for step in range(1, STEPS + 1):
        state = torch.randn(BATCH, STATE, generator=gen)
        with torch.no_grad():
            noise = 0.3 * torch.randn(BATCH, ACTION, generator=gen)
            action = (torch.tanh(actor(state)) + noise).clamp(-1, 1)
            reward = env.reward(state, action)
        critic_loss = (critic(torch.cat([state, action], 1)) - reward).pow(2).mean()
        critic_opt.zero_grad()
        critic_loss.backward()
        average_gradients(critic.parameters())
        critic_opt.step()

        actor_loss = -critic(torch.cat([state, torch.tanh(actor(state))], 1)).mean()
        actor_opt.zero_grad()
        actor_loss.backward()
        average_gradients(actor.parameters())
        actor_opt.step()

        if step == EVAL_FROM:
            eval_group = dist.new_group(evaluators)
            swa_group = dist.new_group(list(range(world)))
        if step >= EVAL_FROM and step % EVAL_EVERY == 0:
            average_weights(actor, swa_group)
            if rank in evaluators:
                score = evaluate(actor, env, gen, eval_group)
                if rank == 0:
                    print(f"step {step} score {score:.4f}", flush=True)
        if step % 20 == 0 and rank == 0:
            print(f"step {step} critic {critic_loss.item():.4f} actor {actor_loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
