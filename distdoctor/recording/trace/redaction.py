"""Secrets in command lines, variables and messages are left out before anything is written. Standard library alone: ranks use it.

By pattern, so it is a net and no proof: what looks like none of these stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

GONE = "[redacted]"
# Names, or beginnings of names, of variables that explain a distributed job and hold no secret.
KEPT = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NCCL_", "RCCL_", "GLOO_", "TORCH_", "PYTORCH_", "TP_", "UCX_",
    "FI_", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NNODES", "OMPI_COMM_WORLD_", "PET_",
    "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
_WORDS = "KEY|TOKEN|SECRET|PASS|PWD|CRED|AUTH|PRIVATE|COOKIE|BEARER|SIGNATURE"
_NAME = re.compile(rf"(?:{_WORDS})", re.IGNORECASE)
# `max_tokens`, `monkey`, `author`, `keys`: parts of ordinary words and settings, followed by a number or a path
_ORDINARY = re.compile(
    r"TOKENS|TOKENIZER|TOKENISER|MONKEY|KEYERROR|KEYBOARD|KEYPOINT|KEEP|AUTHOR(?!I)|BYPASS|PASSES|COMPASS|KEYS",
    re.IGNORECASE,
)
_URL = re.compile(r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/@'\"]{1,512}@")
# Only from the beginning of a word, so that a long one is tried once; only a secret's name, so that no other takes its value.
# A value in quotes goes up to the other one or to where the text was cut; so does one in brackets, `auth=("user", "...")`.
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9_.-])(?=[A-Za-z0-9_.-]{{0,64}}(?:{_WORDS}))"
    r"(?P<name>[A-Za-z0-9_.-]{1,64})(?P<between>\\{0,3}[\"']?[ \t]{0,16}[=:](?:[ \t]{0,16}|\s))"
    r"(?P<value>\\{0,3}(?:\"[^\"]{1,4096}(?:\"|\Z)|'[^']{1,4096}(?:'|\Z)|\([^)]{1,512}\)|\[[^\]]{1,512}\]|\{[^}]{1,512}\})"
    r"|\\{0,3}[\"']?(?:(?:Bearer|Basic|Token|Digest|ApiKey) )?[^\s\"',;&)}\]]{1,4096})",
    re.IGNORECASE,
)
_COOKIES = re.compile(
    r"(?P<name>\b(?:Set-)?Cookie[\"']?[ \t]{0,16}:[ \t]{0,16}[\"']?)[^\r\n\"']{1,4096}", re.IGNORECASE
)
_HEREAFTER = re.compile(
    r"(?P<name>\b(?:password|passwd|passphrase)[ \t]{1,4})(?=[^\s\d]{0,64}\d)\S{8,4096}", re.IGNORECASE
)
_USER = re.compile(r"(?P<name>(?<!\S)(?:-u|--user)[ =][^\s:'\"]{1,64}:)[^\s'\"]{1,4096}")
_KEY_BLOCK = re.compile(r"(?P<name>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----)[^-]{1,16384}")
# Whoever knows such an address may write to the channel behind it.
_HOOK = re.compile(
    r"(?P<name>https?://(?:hooks?\.[^\s/'\"]{1,200}/|[^\s/'\"]{1,200}/(?:api/)?webhooks?[a-z0-9]{0,8}/|api\.telegram\.org/bot))"
    r"[^\s'\"]{1,512}",
    re.IGNORECASE,
)
_SIGNED = re.compile(r"(?P<name>[?&]sig=)[^\s&'\"]{1,4096}", re.IGNORECASE)  # Azure's signed addresses
# In source only what is written out as a string: `token = load()` says nothing, and `key="train/loss"` is no secret.
_WRITTEN_OUT = re.compile(
    r"(?<![A-Za-z0-9_.-])(?=[A-Za-z0-9_.-]{0,64}(?:TOKEN|SECRET|PASS|PWD|CRED|BEARER|(?:API|ACCESS|AUTH|PRIVATE)[_-]?KEY))"
    r"(?P<name>[A-Za-z0-9_.-]{1,64})(?P<between>[\"']?\]?\s{0,4}(?::\s?\w{1,64}\s?)?[=:]\s{0,4}[rbuf]{0,2}[\"'])"
    r"(?P<value>[A-Za-z0-9+/=_.~:-]{8,4096})(?=[\"'])",
    re.IGNORECASE,
)
# What the large services put before theirs: AWS, GitHub, GitLab, Hugging Face, OpenAI, Slack, Google; and JSON web tokens.
_KNOWN = re.compile(
    r"\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,64}|hf_[A-Za-z0-9]{16,64}"
    r"|sk-[\w-]{16,255}|xox[abprs]-[\w-]{10,255}|AIza[\w-]{30,64}|eyJ[\w-]{8,2048}\.[\w-]{8,2048}\.[\w-]{0,1024})"
)


def is_secret(name: str) -> bool:
    """Whether a variable or an option of this name holds something that is nobody's business."""
    return bool(_NAME.search(_ORDINARY.sub("", name)))


def redacted(text: str) -> str:
    """`text` without credentials in URLs, without what is assigned to a secret's name, and without known kinds of tokens."""
    text = _URL.sub(lambda found: f"{found['scheme']}{GONE}@", text)
    for pattern in (_HOOK, _COOKIES, _SIGNED, _USER, _HEREAFTER, _KEY_BLOCK):
        text = pattern.sub(lambda found: f"{found['name']}{GONE}", text)
    text = _ASSIGNED.sub(lambda found: _kept(found) if is_secret(found["name"]) else found[0], text)
    return _KNOWN.sub(GONE, text)


def kept_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables on the allow-list: the others may hold secrets."""
    return {
        name: redacted(value)
        for name, value in sorted(environment.items())
        if name.startswith(KEPT) and not is_secret(name)
    }


def redacted_source(text: str) -> str:
    """The user's source likewise, as far as a secret is written out in it."""
    text = _URL.sub(lambda found: f"{found['scheme']}{GONE}@", text)
    for pattern in (_HOOK, _KEY_BLOCK):
        text = pattern.sub(lambda found: f"{found['name']}{GONE}", text)
    text = _WRITTEN_OUT.sub(lambda found: _kept(found) if is_secret(found["name"]) else found[0], text)
    return _KNOWN.sub(GONE, text)


def _kept(found: re.Match[str]) -> str:
    opening = found["value"].lstrip("\\")[:1]
    quote = opening if opening in "\"'" else ""
    closing = quote if found["value"].endswith(quote) else ""
    return f"{found['name']}{found['between']}{quote}{GONE}{closing}"


def redacted_arguments(arguments: Iterable[str]) -> list[str]:
    """A command line likewise; also the argument after an option such as `--token`, and the password of `-u user:password`."""
    found: list[str] = []
    follows = False
    for argument in map(str, arguments):
        user = argument.partition(":")[0] if found and found[-1] in ("-u", "--user") and ":" in argument else ""
        found.append(
            GONE if follows and not argument.startswith("-") else f"{user}:{GONE}" if user else redacted(argument)
        )
        follows = argument.startswith("-") and "=" not in argument and is_secret(argument)
    return found
