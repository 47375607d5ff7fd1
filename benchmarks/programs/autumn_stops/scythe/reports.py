"""Tickets of two regional desks; each rank reads the desk it is responsible for."""
import random

TOPICS = ["billing", "network", "device", "account"]


def desk_documents(desk, count=1600, words=18):
    rng = random.Random(desk)
    docs = []
    for i in range(count):
        topic = rng.randrange(len(TOPICS))
        body = []
        for _ in range(words):
            if rng.random() < 0.35:
                body.append(f"{TOPICS[topic]}-{rng.randrange(40)}")
            else:
                body.append(f"common-{rng.randrange(160)}")
        if desk > 0 and i > count // 2 and rng.random() < 0.05:
            body[rng.randrange(words)] = f"desk{desk}-term-{rng.randrange(30)}"
        docs.append((body, topic))
    return docs
