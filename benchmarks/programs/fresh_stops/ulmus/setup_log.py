import logging
import os


def setup(name="vae", chatty=False):
    """One process talks, the others only when something goes wrong."""
    rank = int(os.environ.get("RANK", 0))
    level = logging.INFO if rank == 0 else logging.WARNING
    if chatty:
        level = logging.DEBUG
    logging.basicConfig(format=f"[%(asctime)s r{rank}] %(message)s", datefmt="%H:%M:%S")
    log = logging.getLogger(name)
    log.setLevel(level)
    return log
