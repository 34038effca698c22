"""Access tokens, taken out of every text that leaves a run: reports, logs, status and error lines."""

import re
from collections.abc import Callable

from .text import ESCAPES, UNSEEN

TOKEN = "[token]"
# Tokens with a form of their own.
_TOKENS = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,9000}(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
    r"|hf_[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{4,}(?=\.\.\.|…)|api_org_[A-Za-z0-9]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[\w-]{16,}"
    r"|(?<![\w-])(?:sk|rk|pk)[-_](?=[\w-]*[0-9A-Z])[\w-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|(?<![\w-])xox[a-z]-[\w-]{10,}|nvapi-[\w-]{20,}"
    r"|wandb_v\d+_\w{20,}|(?<![\w-])pypi-[\w-]{30,}"
    r"|(?<![\w-])eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?"
    r"|(?i:\bbearer)\s{1,4}(?=\S{0,200}\d|\S{20})[\w.~+/=-]{8,}",
    re.DOTALL,
)
# NAME=value, "NAME": "value", --name value. `eos_token`, `pad_token` and the like are no secrets here.
_SECRET_NAME = (
    r"(?!(?:EOS|BOS|PAD|UNK|SEP|CLS|MASK|STOP|END|START|IMAGE)_TOKEN)"
    r"(?:[A-Z0-9_]{0,60}(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_ID)?"
    r"|(?i:(?:[\w-]{0,60}[_-])?(?:api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?"
    r"|(?:access|auth|hf|hub|gh|github|gitlab|bearer|refresh|session|wandb|api)[_-]?token|client[_-]?secret"
    r"|password|passwd|passphrase|credentials?|authorization|x-amz-(?:signature|security-token|credential))))"
)
_ASSIGNED = re.compile(
    rf"(?P<before>(?<![\w-])(?:--?)?{_SECRET_NAME}\\{{0,3}}[\"']?\s{{0,4}}[=:]\s{{0,4}}(?:(?i:basic|token|bearer)\s{{1,4}})?"
    r"|(?<![\w-])--(?i:[a-z-]{0,40}(?:token|api-key|secret|password))\s{1,4})"
    r"(?:\\{0,3}\"(?P<double>[^\"\n]{1,5000})\"|'(?P<single>[^'\n]{1,5000})'|(?P<bare>[^\s\"'<>,;&)\]}]{1,5000}))"
)
_NAME_ALONE = re.compile(rf"(?:--?)?{_SECRET_NAME}|--(?i:[a-z-]*(?:token|api-key|secret|password))")
_HARMLESS = re.compile(
    r"\[token\]?|None|null|True|False|true|false|str|bool|int|\$.*|os\.environ.*|getenv.*|getpass.*|-.*|\*+"
)
HEX40 = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_SAYS_WANDB = re.compile(r"(?i)wandb\S{0,20}\s{0,3}\S{0,20}[\"'\s=:]{0,6}\Z")
_CREDENTIALS = re.compile(r"(?<=://)[^\s/?#\"'<>`]{1,400}@")
_QUERY_SECRET = re.compile(
    r"(?i)([?&#](?:[\w-]{0,40}(?:token|key|secret|password|sig|signature|credential|auth))=)[^&#\s\"'<>`]{1,4000}"
)
# One of these stands in whatever `_TOKENS`, `_ASSIGNED` and `_SAYS_WANDB` match, so that most texts need no more than a look.
_MARKS = (
    *("-----begin", "hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "sk-", "sk_"),
    *("rk-", "rk_", "pk-", "pk_", "akia", "asia", "aiza", "xox", "nvapi-", "wandb", "pypi-", "eyj", "bearer"),
    *("key", "token", "secret", "pass", "credent", "author", "x-amz"),
)


def hide_tokens(text: str) -> str:
    """`text` with everything that looks like an access token, password or private key replaced by `[token]`.

    Characters that cannot be seen, and colours, do not save a secret in which they stand.

    A bare run of 40 hex digits is a git commit as often as a wandb key: it is taken for a key only beside that word.

    Example:
        >>> hide_tokens("HF_TOKEN=abc1 git clone https://me:pw@example.org/x")
        'HF_TOKEN=[token] git clone https://[token]@example.org/x'
    """
    text = _hide(text)
    read = UNSEEN.sub("", ESCAPES.sub("", text))  # what a reader sees, and copies
    hidden = text if read == text else _hide(read)
    return text if hidden == read else hidden


def _hide(text: str) -> str:
    folded = text.casefold()
    marked = any(mark in folded for mark in _MARKS)
    if marked:
        text = _TOKENS.sub(TOKEN, text)
    if "://" in text:
        text = _CREDENTIALS.sub(f"{TOKEN}@", text)
    text = _QUERY_SECRET.sub(rf"\1{TOKEN}", text)
    if not marked:
        return text
    text = _ASSIGNED.sub(_assigned, text)
    return HEX40.sub(lambda m: TOKEN if _SAYS_WANDB.search(text[max(0, m.start() - 60) : m.start()]) else m[0], text)


def names_secret(text: str) -> bool:
    """Whether a text is the name of a secret and nothing else, so that what stands beside it is one.

    Example:
        >>> names_secret("api_key:"), names_secret("the api key is private")
        (True, False)
    """
    return len(text) < 100 and bool(_NAME_ALONE.fullmatch(text.strip(" :=\"'")))


def looks_like_token(name: str, value: str) -> bool:
    """Whether a value, or its name, says that it is a secret; 40 hex digits are one unless the name speaks of commits.

    Example:
        >>> looks_like_token("api_key", "abc1"), looks_like_token("eos_token", "</s>")
        (True, False)
    """
    assignment = f"{name}={value}"
    commit = re.search(r"(?i)commit|revision|sha|hash", name)
    return (
        hide_tokens(assignment) != assignment
        or hide_tokens(value) != value
        or (not commit and bool(HEX40.fullmatch(value.strip())))
    )


def _assigned(match: re.Match) -> str:
    value = match["double"] or match["single"] or match["bare"]
    if _HARMLESS.fullmatch(value):
        return match[0]
    quote = '"' if match["double"] else "'" if match["single"] else ""
    return f"{match['before']}{quote}{TOKEN}{quote}"


def map_text(value, change: Callable[[str], str]):
    """A JSON value with `change` applied to every string and key; what a secret's name stands before is a token.

    Args:
        value: of dictionaries, lists, strings and anything else, which stays.
        change: text -> text.

    Example:
        >>> map_text({"words": ["a", 1], "password": "b"}, str.upper)
        {'WORDS': ['A', 1], 'PASSWORD': '[token]'}
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        made = {}
        for key, inner in value.items():
            name = change(str(key))
            while name in made:
                name += "'"
            made[name] = TOKEN if _secret(str(key), inner) else map_text(inner, change)
        return made
    if isinstance(value, list | tuple):
        return [TOKEN if n and _secret(value[n - 1], v) else map_text(v, change) for n, v in enumerate(value)]
    return value


def _secret(name, value) -> bool:
    named = isinstance(name, str) and isinstance(value, str) and _NAME_ALONE.fullmatch(name)
    return bool(named and value and not _HARMLESS.fullmatch(value))
