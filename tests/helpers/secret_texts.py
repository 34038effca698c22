"""Hypothesis strategies of what must not be shared: tokens, secrets by name, and what may stand around them."""

import string
from pathlib import Path

from hypothesis import strategies as st

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LETTERS = string.ascii_letters + string.digits


def letters(low: int, high: int = 40, alphabet: str = LETTERS):
    return st.text(alphabet, min_size=low, max_size=high).map(lambda text: text + "7")


hexes = st.text("0123456789abcdef", min_size=40, max_size=40)
tokens = st.one_of(
    *(letters(20).map(f"{prefix}{{}}".format) for prefix in ("hf_", "sk-proj-", "sk-", "glpat-")),
    *(letters(30).map(f"{prefix}{{}}".format) for prefix in ("ghp_", "github_pat_")),
    letters(15, 15, string.ascii_uppercase).map("AKIA{}".format),
    st.builds("eyJ{}.{}.{}".format, letters(10), letters(10), letters(10)),
)
SECRET_NAMES = (
    "HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY MY_SECRET DB_PASSWORD PASSWORD api_key apiKey client-secret password "
    'hub_token --api-key --password "access_token" Authorization'
)
assigned = st.builds(  # (text, the part that must not survive)
    lambda name, sign, quote, value: (f"{name}{sign}{quote}{value}{quote}", value),
    st.sampled_from(SECRET_NAMES.split()),
    st.sampled_from(["=", ": ", " = ", ":"]),
    st.sampled_from(["", "'", '"']),
    letters(8, alphabet=string.ascii_lowercase).map("q{}".format),
)
urls = st.builds(
    lambda user, secret, rest: (f"https://{user}:{secret}@github.com/{rest}", secret),
    letters(3, 8), letters(8), st.sampled_from(["", "a/b.git", "x?y=1"]),
)  # fmt: skip
# What may stand around a secret: blanks, quotes, brackets, punctuation, other text.
around = st.tuples(
    st.text(max_size=20), st.sampled_from([" ", "\n", "'", '"', "(", "=", ", ", ": ", "\t", "[", "{", "`"])
)


def between(before: tuple[str, str], secret: str, after: tuple[str, str]) -> str:
    return f"{before[0]}{before[1]}{secret}{after[1]}{after[0]}"


# Secrets as they stand in logs, code and configuration, one a line, with escapes.
PLANTED = [
    line.encode().decode("unicode_escape")
    for line in Path(__file__).with_name("planted_secrets.txt").read_text().splitlines()
]
SECRET = "S3cretValue42"


def left_of(text: str) -> list[str]:
    """The planted secrets that a text still shows."""
    return [secret for secret in (SECRET, "Ab1xY2Ab1xY2", "0a1b2c3d0a1b2c3d") if secret in text]
