"""Secrets leave no trace: in command lines, variables and messages they are gone before anything is written."""

from __future__ import annotations

import pytest

from distdoctor.recording.trace.redaction import is_secret, redacted, redacted_arguments, redacted_source

CANARY = "canary7Zq3x9PmK2"
CARRIERS = [
    "--token={}", "HF_TOKEN={}", "api_key: {}", "'password': '{}'", '"secret": "{}"', "https://user:{}@host/x", "postgres://u:{}@db",
    "Authorization: Bearer {}", "?access_token={}&x=1", "WANDB_API_KEY={}", "aws_secret_access_key = {}", "passwd={}",
    "s3://key:{}@bucket", "https://{}@git.example/x", "?sig={}&se=1", "AUTH={}", "client_secret={};", "MY_CREDENTIALS={}",
    "https://hooks.slack.com/services/T0/B0/{}", "https://discord.com/api/webhooks/12/{}", "https://api.telegram.org/bot{}/send",
    "Cookie: theme=dark; session={}", "{{'Set-Cookie': 'a=1; session={}'}}", "auth=('bot', '{}')",
    "auth={{'user': 'bot', 'pin': '{}'}}",
    "password='two words {}'", 'password="a)b;{}"', "api_key:        {}", '{{\\"api_key\\": \\"{}\\"}}',
    "Authorization: token {}",
    "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", "curl -u bot:{} host", "machine h login u password {}",
    "AccountName=x;AccountKey={};EndpointSuffix=core", "hub.token={}",
]  # fmt: skip
KNOWN = [
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_" + "a1" * 18,
    "hf_" + "aB3" * 8,
    "sk-" + "x9" * 20,
    "xoxb-12345678901-abc",
    "glpat-" + "a1B2" * 5,
]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_is_assigned_to_a_secrets_name_is_gone(carrier: str) -> None:
    assert CANARY not in redacted(f"error: {carrier.format(CANARY)} was refused")


@pytest.mark.parametrize("token", KNOWN)
def test_tokens_of_known_kinds_are_gone_wherever_they_stand(token: str) -> None:
    assert token not in redacted(f"could not log in with {token}.")


@pytest.mark.parametrize("option", ["--token", "--api-key", "--hub_token", "-password", "--db-pass"])
def test_the_argument_after_a_secrets_option_is_gone(option: str) -> None:
    assert redacted_arguments(["train.py", option, CANARY, "--lr", "1"]) == [
        "train.py",
        option,
        "[redacted]",
        "--lr",
        "1",
    ]


def test_a_value_that_was_cut_off_before_its_closing_quote_is_gone() -> None:
    assert redacted("refused: password='two words") == "refused: password='[redacted]"


def test_the_password_behind_a_user_is_gone() -> None:
    assert redacted_arguments(["-u", f"bot:{CANARY}", "x"]) == ["-u", "bot:[redacted]", "x"]


@pytest.mark.parametrize(
    "words",
    [
        "--max-tokens=512",
        "--tokenizer=gpt2",
        "lr=0.1",
        "http://host:29500/x",
        "KeyError: 'epoch'",
        "train.py:57 main",
        "--monkey=1",
        "the password has to have 12 letters",
        "a webhook failed: https://ci.example/webhook",
        "python -u train.py",
        "cookie cutter: 3 of 4",
        "password authentication failed for user 5",
    ],
)
def test_ordinary_words_stay(words: str) -> None:
    assert redacted(words) == words


@pytest.mark.parametrize(
    "line",
    [
        'API_KEY = "{}"',
        "login(token='{}')",
        'config["db_password"] = "{}"',
        'secret: str = r"{}"',
        'url = "s3://{}@bucket"',
    ],
)
def test_a_secret_that_is_written_out_in_source_is_not_quoted(line: str) -> None:
    assert CANARY not in redacted_source(line.format(CANARY))


@pytest.mark.parametrize(
    "line",
    [
        "token = load_token(path)",
        'metrics.log(key="train/loss_total", value=1)',
        'pad_token = "<|endoftext|>"',
        "for key, value in state.items():",
        'tokenizer = "bert-base-uncased"',
        "@dataclass  # mail me@example.org",
    ],
)
def test_ordinary_source_is_quoted_as_it_is(line: str) -> None:
    assert redacted_source(line) == line


@pytest.mark.parametrize("name", ["TORCH_PASSWD", "TORCH_MYPASS", "NCCL_AUTH", "X_CREDENTIAL", "SLURM_JWT_TOKEN"])
def test_variables_whose_name_says_so_are_secret(name: str) -> None:
    assert is_secret(name)


@pytest.mark.timeout(120)  # of a tenth of a second; a pattern that goes back over what it has read takes hours
def test_a_long_message_costs_no_time() -> None:
    message = (
        "key" * 30_000
        + "://" * 3_000
        + "a:" * 3_000
        + "https://hooks" * 3_000
        + "password " * 10_000
        + "Cookie" * 9_000
    )
    message += "-----BEGIN " * 3_000 + "PRIVATE " * 3_000 + "-u " * 9_000 + "webhook/" * 9_000
    source = "://x" * 60_000 + "token=" * 60_000 + "api" * 60_000
    assert redacted(message) == message
    assert redacted_source(source) == source
