import logging
import time


def train_one_epoch(model, optimizer, loader, epoch, print_freq=10):
    model.train()
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    start = time.time()
    for step, (images, targets) in enumerate(loader):
        losses = model(images, targets)
        total = losses["cls"] + losses["box"]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        if step % print_freq == 0:
            logging.info("epoch %d [%d/%d] %s", epoch, step, len(loader),
                         " ".join(f"{k} {v.item():.3f}" for k, v in losses.items()))
    logging.info("epoch %d done in %.1fs", epoch, time.time() - start)
