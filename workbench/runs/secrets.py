"""Secrets, taken out of every text that leaves a run: reports, logs, status and error lines."""

import re
from collections.abc import Callable

from .text import ESCAPES, UNSEEN

TOKEN = "[token]"
# Secrets with a form of their own that stand in the logs of trainings, each behind what stands in it. Others are found by the
# names next to them.
_FORMS = {
    "-----begin": r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?s:.{0,20000}?-----END [A-Z0-9 ]{0,40}-----|(?:[\w+/=:,\s.-]|\\n){0,20000})",
    "hf_": r"hf_[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{4,}(?=\.\.\.|…)",
    "gh": r"gh[pousr]_[A-Za-z0-9]{20,}",
    "gl": r"gl(?:pat|rt|dt|ft|cbt|ptt|soat|agent)-[\w-]{16,}",
    "wandb_v": r"wandb_v\d+_\w{20,}",
    "hooks.slack": r"hooks\.slack\.com/[a-z]+/[\w/-]{16,}",
    "xox": r"(?<![\w-])xox[a-z]-[\w-]{10,}",
    "k-": r"(?<![\w-])[srp]k-(?=[\w-]*[0-9A-Z])[\w-]{16,}",  # of OpenAI, Anthropic, OpenRouter, DeepSeek and others
    "k_": r"(?<![\w-])[srp]k_(?=[\w-]*[0-9A-Z])[\w-]{16,}",
    "eyj": r"(?<![\w-])eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?",
    "bearer": r"(?i:\bbearer)\s{1,4}(?=\S{0,200}\d|\S{20})[\w.~+/=-]{8,}",
}
for prefix in re.findall(r"\S+", "api_org_ github_pat_ AKIA ASIA AIza ya29. nvapi- gsk_ xai- xapp-"):
    _FORMS[prefix.casefold()] = rf"(?<![A-Za-z0-9]){re.escape(prefix)}[\w-]{{16,}}"
_TOKENS = {mark: re.compile(pattern) for mark, pattern in _FORMS.items()}
# Names of secrets. `eos_token`, `max_tokens` and the like are none here.
_OWNERS = re.findall(
    r"\w+",
    "access account anthropic api auth aws azure bearer bot client cohere csrf deepseek deploy discord encryption gemini "
    "github gitlab google groq hf hub huggingface login master mistral oauth openai openrouter personal private refresh "
    "registry secret security service session signing slack ssh storage subscription telegram together user vault wandb xsrf",
)


def _owned(word: str) -> str:
    return "(?:" + "|".join(f"(?<={owner}{sign}{word})" for owner in _OWNERS for sign in ("", "[_-]")) + ")"


_SPECIAL = "".join(f"(?<!{n}_TOKEN)" for n in re.findall(r"\w+", "EOS BOS PAD UNK SEP CLS MASK STOP END START IMAGE"))
_SECRET_NAME = (  # its end; what stands before it is looked at behind it, which is far quicker
    rf"(?:TOKEN(?<![a-z]TOKEN){_SPECIAL}(?:_ID)?|KEY(?<![a-z]KEY)(?:_ID)?|_KEYS|_PASS|_PWD|SECRETS?|[Pp]wd(?<![\w-]pwd)"
    r"|(?i:password|passwd|passphrase|[_-]pass|[_-]pwd|secrets?|credentials?|apikeys?|authorization|x-amz-(?:signature|credential)"
    rf"|token{_owned('token')}|key{_owned('key')}s?(?:[_-](?:id|data))?))"
)
_OPENS = r"(?P<opens>(?:(?:[A-Za-z_][\w.]{0,40})?[(\[{]\s{0,4}){0,2}[bBrRfFuU]{0,2})"
_QUOTED = (
    r"(?:(?P<q>\\{0,3}\"{3}|'{3})(?P<long>(?s:.){1,5000}?)(?P=q)"
    r"|\\{0,3}\"(?P<double>[^\"\n]{1,5000})\"|'(?P<single>[^'\n]{1,5000})')"
)
_ASSIGNED = re.compile(
    rf"(?P<before>{_SECRET_NAME}\\{{0,3}}[\"']?"
    r"(?:\]?\s{0,4}(?::\s{0,4}(?:typing\.)?(?:str|bytes|Any|Final|Optional|SecretStr)\b[\w.\[\] |]{0,40}=|[=:])\s{0,4}"
    r"|\s{0,4}\n[ \t]{0,40}[\"']?value[\"']?:\s{0,4}|>(?!\s))"
    r"(?:(?i:basic|token|bearer|apikey|negotiate)\s{1,4})?"
    r"|(?<![\w-])--(?i:[a-z-]{0,40}(?:token|api-key|secret|password))(?:\s{0,4}=\s{0,4}|\s{1,4})"
    rf"|%(?:set_)?env\s{{1,4}}\w{{0,60}}?{_SECRET_NAME}[\s=]{{1,4}})"
    rf"(?:{_OPENS}{_QUOTED}|(?P<bare>[^\s\"'<>,;&)\]}}\x1b]{{1,5000}}))"
    # Between a name and its value in code: `getenv("KEY") or "value"`, `("password", "value")`
    rf"|(?P<before2>{_SECRET_NAME}[\"'](?:\s{{0,4}},|\)\s{{0,4}}or)\s{{0,4}})[\"'](?P<value2>[^\"'\n]{{1,5000}})(?=[\"'])"
)
# What a weaker name than those stands before, where it looks like a secret.
_LOOKS = r"(?=[^\s\"'<>,;&)\]}]*\d)(?=[^\s\"'<>,;&)\]}]*[A-Za-z])[^\s\"'<>,;&)\]}]"
_WEAK = re.compile(
    rf"(?P<before>(?<![\w-])(?i:token|pass|auth|_xsrf|csrftoken|\w{{0,20}}session_?id|password)[\"']?\s{{0,4}}[=:]\s{{0,4}}[\"']?"
    rf"|\b(?i:password)[ \t]{{1,4}}){_LOOKS}{{6,}}"
    r"|(?P<login>\b(?:docker|podman|helm|oc)\s+login\b[^\n]{0,200}?\s-p[\s=]+|\bcurl\b[^\n]{0,300}?\s(?:-u|--user)[\s=]+[^\s:]+:)\S+"
)
# The whole value of these headers, whatever its scheme.
_HEADER = re.compile(
    r"(?i)(?P<before>(?<![\w-])(?:(?:proxy-)?authorization|(?:set-)?cookie|private-token|[\w-]{0,40}subscription-key"
    r"|x-[\w-]{0,40}(?:token|key|auth|secret|signature))"
    r"(?:\\{0,3}[\"']\s{0,4}:\s{0,4}(?P<q>\\{0,3}[\"'])|\s{0,4}:[ \t]{1,4}))"
    r"(?(q)[^\"'\n\\]{1,5000}|(?:\[token\](?!\S)|(?:bearer|basic|token)\s{1,4}[^\s\"'<>\x1b]{1,5000}"
    r"|[^\"'\n<>\x1b]{1,5000}(?:(?<=[=:\s])[\"'][^\"'\n]{0,2000}[\"'][^\"'\n<>\x1b]{0,2000}){0,20}))"
)
_NAME_ALONE = re.compile(
    rf"[\w-]{{0,60}}?{_SECRET_NAME}|--(?i:[a-z-]*(?:token|api-key|secret|password))|(?i:(?:set-)?cookie)"
)
_HARMLESS = re.compile(
    r"\[token\]?|None|null|True|False|true|false|str|bool|int|\$\w+|\$[{(].*|os\.environ.*|getenv.*|getpass.*|--?[a-z][a-z-]*|\*+"
)
HEX40 = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_SAYS_WANDB = re.compile(
    r"(?i)(?:wandb\S{0,20}\s{0,3}\S{0,20}[\"'\s=:]{0,6}|(?:wandb|api key)[^\n]{0,150}[:=]\s{0,4})\Z"
)
_CREDENTIALS = re.compile(r"(?<=://)(?:[^\s/?#\"'<>`]{1,400}|[^\s/?#\"'<>`@:]{1,200}:[^\s/\"<>`]{1,200})@")
_QUERY_SECRET = re.compile(
    r"(?i)([?&#](?:[\w-]{0,40}(?:token|key|secret|password|sig|signature|credential|auth))=)[^&#\s\"'<>`]{1,4000}"
)
# One of these stands in whatever `_HEADER`, `_ASSIGNED` and `_WEAK` match, so that most texts need no more than a look.
_MARKS = re.findall(r"\S+", "key token secret pass pwd credent auth x- cookie xsrf session curl login")


def hide_tokens(text: str) -> str:
    """`text` with everything that looks like an access token, password or private key replaced by `[token]`.

    Characters that cannot be seen, and colours, do not save a secret in which they stand.

    A bare run of 40 hex digits is a git commit as often as a wandb key: it counts as a key only next to that word.

    Example:
        >>> hide_tokens("HF_TOKEN=abc1 git clone https://me:pw@example.org/x")
        'HF_TOKEN=[token] git clone https://[token]@example.org/x'
    """
    read = UNSEEN.sub("", ESCAPES.sub("", text))  # what a reader sees, and copies
    hidden = _hide(read)
    direct = hidden if read == text else _hide(text)  # a terminal does not show the address of a link
    return direct if read == text or UNSEEN.sub("", ESCAPES.sub("", direct)) == hidden else hidden


def _hide(text: str) -> str:
    folded = text.casefold()
    for mark, form in _TOKENS.items():
        if mark in folded:
            text = form.sub(TOKEN, text)
    if "://" in text:
        text = _CREDENTIALS.sub(f"{TOKEN}@", text)
    text = _QUERY_SECRET.sub(rf"\1{TOKEN}", text)
    if any(mark in folded for mark in _MARKS):
        text = _HEADER.sub(_header, text)
        text = _ASSIGNED.sub(_assigned, text)
        text = _WEAK.sub(lambda m: f"{m['before'] or m['login']}{TOKEN}", text)
    if "wandb" not in folded and "api key" not in folded:
        return text
    return HEX40.sub(lambda m: TOKEN if _SAYS_WANDB.search(text[max(0, m.start() - 200) : m.start()]) else m[0], text)


def names_secret(text: str) -> bool:
    """Whether a text is the name of a secret and nothing else, so that what stands next to it is one.

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


def _header(match: re.Match) -> str:
    return match[0] if _HARMLESS.fullmatch(match[0][len(match["before"]) :].strip()) else match["before"] + TOKEN


def _assigned(match: re.Match) -> str:
    value = next(v for v in map(match.group, ("long", "double", "single", "bare", "value2")) if v)
    if _HARMLESS.fullmatch(value):
        return match[0]
    if match["value2"]:
        return match[0][: -len(value)] + TOKEN
    quote = match["q"] or ('"' if match["double"] else "'" if match["single"] else "")
    return f"{match['before']}{match['opens'] or ''}{quote}{TOKEN}{quote}"


def map_text(value, change: Callable[[str], str]):
    """A JSON value with `change` applied to every string and key; what a secret's name stands before is a token.

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
