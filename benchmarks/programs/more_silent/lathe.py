"""Actor-learner bandit: rank 0 learns, the others act with weights that are a few updates old (by design)."""
import torch
import torch.distributed as dist
import torch.nn as nn

CONTEXT, ARMS, ROWS = 8, 6, 48
UPDATES, PUSH_EVERY = 100, 4


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(CONTEXT, 48), nn.Tanh())
        self.pi, self.v = nn.Linear(48, ARMS), nn.Linear(48, 1)

    def forward(self, c):
        h = self.body(c)
        return torch.log_softmax(self.pi(h), -1), self.v(h).squeeze(-1)


class World:
    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.w = torch.randn(CONTEXT, ARMS, generator=g)

    def reward(self, context, arm):
        return ((context @ self.w).argmax(1) == arm).float()


def push_weights(policy):
    """Learner to actors."""
    for p in policy.parameters():
        dist.broadcast(p.data, src=0)


@torch.no_grad()
def act(policy, world):
    context = torch.randn(ROWS, CONTEXT)
    logp, _ = policy(context)
    arm = torch.multinomial(logp.exp(), 1)
    return torch.cat([context, arm.float(), logp.gather(1, arm), world.reward(context, arm[:, 0]).unsqueeze(1)], 1)


def learn(policy, opt, rows):
    context, arm = rows[:, :CONTEXT], rows[:, CONTEXT].long()
    behaviour, reward = rows[:, CONTEXT + 1], rows[:, CONTEXT + 2]
    logp, value = policy(context)
    chosen = logp.gather(1, arm.unsqueeze(1)).squeeze(1)
    ratio = (chosen.detach() - behaviour).exp().clamp(max=2.0)       # the actors lag behind
    advantage = reward - value.detach()
    loss = -(ratio * advantage * chosen).mean() + 0.5 * (reward - value).pow(2).mean()
    loss = loss + 0.01 * (logp.exp() * logp).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return reward.mean().item()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    policy, world = Policy(), World()
    opt = torch.optim.Adam(policy.parameters(), lr=5e-3) if rank == 0 else None
    width = CONTEXT + 3
    for update in range(UPDATES):
        if update % PUSH_EVERY == 0:
            push_weights(policy)
        if rank == 0:
            parts = [torch.empty(ROWS, width) for _ in range(size)]
            dist.gather(torch.zeros(ROWS, width), parts, dst=0)
            mean = learn(policy, opt, torch.cat(parts[1:]))          # rank 0 itself does not act
            if update % 25 == 0:
                print(f"update {update}: reward {mean:.3f}", flush=True)
        else:
            dist.gather(act(policy, world), dst=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
