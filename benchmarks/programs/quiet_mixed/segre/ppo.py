import torch


def collect(agent, env, horizon):
    obs = env.reset()
    buf = {k: [] for k in ("obs", "act", "logp", "val", "rew")}
    for _ in range(horizon):
        agent.norm.update(obs)
        act, logp, val = agent.act(obs)
        nxt, rew = env.step(act)
        for k, v in zip(buf, (obs, act, logp, val, rew)):
            buf[k].append(v)
        obs = nxt
    return {k: torch.stack(v) for k, v in buf.items()}


def advantages(buf, gamma=0.97, lam=0.95):
    rew, val = buf["rew"], buf["val"]
    adv, last = torch.zeros_like(rew), 0
    for t in reversed(range(len(rew))):
        nxt = val[t + 1] if t + 1 < len(rew) else torch.zeros_like(val[t])
        last = rew[t] + gamma * nxt - val[t] + gamma * lam * last
        adv[t] = last
    return adv, adv + val


def update(agent, optim, buf, epochs, minibatches, clip=0.2):
    adv, ret = advantages(buf)
    flat = {k: v.flatten(0, 1) for k, v in buf.items()}
    adv, ret = adv.flatten(), ret.flatten()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    for _ in range(epochs):
        for idx in torch.randperm(len(adv)).chunk(minibatches):
            logp, ent, val = agent.evaluate(flat["obs"][idx], flat["act"][idx])
            ratio = (logp - flat["logp"][idx]).exp()
            surrogate = torch.min(ratio * adv[idx], ratio.clamp(1 - clip, 1 + clip) * adv[idx])
            loss = -surrogate.mean() + 0.05 * (val - ret[idx]).pow(2).mean() - 0.001 * ent.mean()
            optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.net.parameters(), 0.5)
            optim.step()
