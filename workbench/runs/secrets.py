"""Secrets, taken out of every text that leaves a run: reports, logs, status and error lines."""

import re
from collections.abc import Callable

from .text import ESCAPES, UNSEEN

TOKEN = "[token]"
_LONGEST_KEY = 20_000  # characters of a private key
# Secrets with a form of their own. Before each is a lower-case text that stands in all of that form, so that most texts need
# one look for it.
_FORMS = {
    "-----begin": r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    rf"(?:(?:[^-]|-(?!----(?:BEGIN|END))){{0,{_LONGEST_KEY}}}-----END [A-Z0-9 ]{{0,40}}-----"
    rf"|(?:[\w+/=:,\s.-]|\\n){{0,{_LONGEST_KEY}}})",
    "hf_": r"hf_[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{4,}(?=\.\.\.|…)",
    "gh": r"gh[pousr]_[A-Za-z0-9]{20,}",
    "gl": r"gl(?:pat|rt|dt|ft|cbt|ptt|soat|agent)-[\w-]{16,}",
    "wandb_v": r"wandb_v\d+_\w{20,}",
    "k-": r"(?<![\w-])[srp]k-(?:(?=[\w-]*[0-9A-Z])[\w-]{16,}|[a-z]{32,})",  # OpenAI, Anthropic, OpenRouter and others
    "k_": r"(?<![\w-])[srp]k_(?=[\w-]*[0-9A-Z])[\w-]{16,}",
    "xox": r"(?<![\w-])xox[a-z]-[\w-]{10,}",
    "hooks.slack": r"hooks\.slack\.com/[a-z]+/[\w/-]{16,}",
    "/webhooks/": r"discord(?:app)?\.com/api/webhooks/\d{1,30}/[\w-]{16,}",
    ":aa": r"(?<!\d)\d{6,12}:AA[\w-]{30,}",  # a bot of Telegram
    '"key"': r'"username"\s{0,4}:\s{0,4}"[^"\n]{0,99}"\s{0,4},\s{0,40}"key"\s{0,4}:\s{0,4}"\w{32}"',  # Kaggle's file
    "eyj": r"(?<![\w-])eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?",  # a JSON web token
    "bearer": r"(?i:\bbearer)\s{1,4}(?=\S{0,200}\d|\S{20})[\w.~+/=-]{8,}",
}
_FORMS |= {
    prefix.lower(): rf"(?<![A-Za-z0-9]){re.escape(prefix)}{rest}"
    for prefixes, rest in [
        ("api_org_ github_pat_ AKIA ASIA AIza ya29. GOCSPX- nvapi- gsk_ xai- xapp-", r"[\w-]{16,}"),
        ("tgp_v1_ dckr_pat_ dckr_oat_ hvs. pypi-AgE", r"[\w-]{16,}"),  # Together, Docker, Vault, PyPI
        ("r8_ pplx- npm_", "[A-Za-z0-9]{30,}"),  # Replicate, Perplexity, npm
        ("fw_", r"(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}"),  # Fireworks
        ("dapi", "[0-9a-f]{32}"),  # Databricks
        ("SG.", r"[\w-]{16,}\.[\w-]{16,}"),  # SendGrid
        ("AGE-SECRET-KEY-", "[A-Z0-9]{40,}"),
    ]
    for prefix in prefixes.split()
}
_TOKENS = {mark: re.compile(pattern) for mark, pattern in _FORMS.items()}

# --- names -----------------------------------------------------------------------------------------------------------

# The end of a name that may be a secret's, and what makes it one. `eos_token`, `max_tokens` and `sort_key` are none.
_NAME_END = re.compile(
    r"(?i)(?:passwords?|passwd|passphrase|pass|pwd|tokens?|keys?|secrets?|credentials?|authorization|auth|signature|_xsrf"
    r"|session_?id)(?:[_-](?:id|data))?"
)
_OWNERS = (
    "access|account|anthropic|api|auth|aws|azure|bearer|bot|client|cohere|csrf|deepseek|deploy|discord|encryption|gemini|github"
    "|gitlab|google|groq|hf|hub|huggingface|login|master|mistral|oauth|openai|openrouter|personal|private|refresh|registry"
    "|secret|security|service|session|signing|slack|ssh|storage|subscription|telegram|together|user|vault|wandb|xsrf"
)
_SECRET_NAME = re.compile(
    r"(?i:(?:password|passwd|passphrase|secrets?|credentials?|authorization|[_-]pass|[_-]pwd|(?<![a-z])id[_-]token)"
    rf"|(?:{_OWNERS})[_-]?(?:token|keys?(?:[_-](?:id|data))?)"
    r"|(?<![\w-])x-[\w-]*(?:token|key|auth|secret|signature|credential))\Z"
    r"|(?:(?<![a-z])KEY(?:_ID)?|(?<![a-z])TOKEN(?:_ID)?|PASSWORDS|Pwd|(?<![\w-])pwd)\Z"
)
_SPECIAL_TOKEN = re.compile(r"(?i)(?:EOS|BOS|PAD|UNK|SEP|CLS|MASK|STOP|END|START|IMAGE)[_-]TOKEN(?:_ID)?\Z")
# Names that are a secret's only before what looks like one.
_MAYBE_SECRET = re.compile(
    rf"(?i:token|pass|auth|_xsrf|[\w-]*session_?id|passwords)\Z|TOKENS\Z|[\w-]*_KEYS\Z|[\w-]*(?i:{_OWNERS})[_-]?(?i:tokens)\Z"
)
_OPTION = re.compile(r"(?i)--[a-z-]*(?:token|api-key|secret|password)\Z")
_LOOKS = re.compile(r"(?=[^\s\"'<>,;&)\]}]*\d)(?=[^\s\"'<>,;&)\]}]*[A-Za-z]).{6}")

# --- values ----------------------------------------------------------------------------------------------------------

_TAG = r"(?:</\w{1,10}>|<(?!th\b|/)[^<>]{0,200}>)"  # `<th>` begins another name
_BETWEEN = "|".join(  # a name and its value
    [
        rf"{_TAG}{{0,4}}\s{{0,4}}"
        r"(?::\s{0,4}(?:typing\.)?(?:str|bytes|Any|Final|Optional|SecretStr)\b[\w.\[\] |]{0,40}=|:=|[=-]>|→|==?|!=|:)\s{0,4}"
        rf"(?:{_TAG}\s{{0,4}}){{0,4}}",
        rf"(?P<tags>(?:\s{{0,40}}{_TAG}){{1,5}}\s{{0,40}}(?![:=\s]))|>(?=\w)",  # cells of a table, XML
        r"\s{0,4}[,\n]\s{0,40}[\"']?value[\"']?\s{0,4}:\s{0,4}|\(value=",
        # Behind the weak ones a value has to look like a secret.
        r"(?P<weak>(?<=[\"'])(?:\s{0,4},|\)\s{0,4}or)\s{0,4}(?=[\"'])|\s{1,4}(?:is|was)\s{1,4}|(?P<blank>[ \t]{1,40}))",
    ]
)
_VALUE = re.compile(
    rf"\\{{0,3}}[\"']?(?P<subscript>\]?)(?:{_BETWEEN})(?:(?i:basic|bearer|token)\s{{1,4}})?"
    # `str("value")`, `["first", "second"]`, `{"value": "value"}`, b"value"
    r"(?:(?P<opens>(?:(?:[A-Za-z_][\w.]{0,40})?[(\[{]\s{0,4}(?:[\"']\w{1,40}[\"']\s{0,4}:\s{0,4})?){0,2}[bBrRfFuU]{0,2})"
    r"(?:(?P<long>\"{3}|'{3})(?P<lines>(?s:.){1,5000}?)(?P=long)"
    r"|(?P<quote>\\{0,3}[\"'])(?!(?P=quote))(?P<quoted>[^\n]{1,5000}?)(?P=quote))"
    r"|[\"'`]?(?:[\[({](?!token\]))?(?P<bare>(?:\[token\])?(?![\[({])[^\s\"'<>,;&)\]}\x1b]{1,5000}))"
)
_MORE_VALUES = re.compile(r"(?:\s{0,4},\s{0,4}(?:\"[^\"\n]{1,2000}\"|'[^'\n]{1,2000}')|,[^\s\"'<>,;&)\]}]{1,2000})+")
# `{"value": "secret", "name": "HF_TOKEN"}`, `Text(value='secret', description='password')`
_VALUE_FIRST = re.compile(
    r"(?P<before>\bvalue[\"']?\s{0,4}[:=]\s{0,4}(?P<q>[\"']))[^\"'\n]{1,2000}(?P<after>(?P=q)\s{0,4},\s{0,40}[\"']?"
    r"(?:name|key|description)[\"']?\s{0,4}[:=]\s{0,4}[\"'](?P<name>[\w-]{1,60})[ :]{0,4}[\"'])"
)
# The whole value of these headers, whatever its scheme.
_HEADER = re.compile(
    r"(?i)(?P<before>(?<![\w-])(?:(?:proxy-)?authorization|(?:set-)?cookie)"
    r"(?:\\{0,3}[\"']\s{0,4}:\s{0,4}(?P<q>\\{0,3}[\"'])|\s{0,4}:[ \t]{1,4}))"
    r"(?(q)[^\"'\n\\]{1,5000}|(?:\[token\](?!\S)|(?:bearer|basic|token)\s{1,4}[^\s\"'<>\x1b]{1,5000}"
    r"|[^\"'\n<>\x1b]{1,5000}(?:(?<=[=:\s])[\"'][^\"'\n]{0,2000}[\"'][^\"'\n<>\x1b]{0,2000}){0,20}))"
)
_HARMLESS = re.compile(
    r"\[token\]?|None|null|True|False|true|false|str|bool|int|\$[A-Z_][A-Z0-9_]*|\$[a-z_]+|\$[{(].*|os\.environ.*|getenv.*"
    r"|getpass.*|--?[a-z][a-z-]*|\*+"
)
HEX40 = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_SAYS_WANDB = re.compile(
    r"(?i)(?:wandb\S{0,20}\s{0,3}\S{0,20}[\"'\s=:]{0,6}|(?:wandb|api key)[^\n]{0,150}[:=]\s{0,4})\Z"
)
_CREDENTIALS = re.compile(r"(?<=://)(?:[^\s/?#\"'<>`]{1,400}|[^\s/?#\"'<>`@:]{1,200}:[^\s/\"<>`]{1,200})@")
_QUERY_SECRET = re.compile(
    r"(?i)([?&#](?:[\w-]{0,40}(?:token|key|secret|password|sig|signature|credential|auth))=)[^&#\s\"'<>`]{1,4000}"
)


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
    if read == text:
        return hidden
    direct = _hide(text)  # a terminal does not show the address of a link
    return direct if UNSEEN.sub("", ESCAPES.sub("", direct)) == hidden else hidden


def _hide(text: str) -> str:
    folded = text.casefold()
    for mark, form in _TOKENS.items():
        if mark in folded:
            text = form.sub(TOKEN, text)
    if "://" in text:
        text = _CREDENTIALS.sub(f"{TOKEN}@", text)
    text = _QUERY_SECRET.sub(rf"\1{TOKEN}", text)
    text = _HEADER.sub(_header, text)
    text = _hide_named(text)
    text = _VALUE_FIRST.sub(lambda m: f"{m['before']}{TOKEN}{m['after']}" if names_secret(m["name"]) else m[0], text)
    if "wandb" not in folded and "api key" not in folded:
        return text
    return HEX40.sub(lambda m: TOKEN if _SAYS_WANDB.search(text[max(0, m.start() - 200) : m.start()]) else m[0], text)


def _hide_named(text: str) -> str:
    """`text` without the values that stand behind the names of secrets."""
    parts = []
    position = 0  # up to which the text is in `parts`
    for end in _NAME_END.finditer(text):
        match = _VALUE.match(text, end.end())
        if match is None or end.start() < position:
            continue  # no value, or within a value that is hidden already
        (name,) = re.findall(r"(?:\b(?i:api|secret|access) )?[\w-]+\Z", text[max(0, end.start() - 60) : end.end()])
        name = name.replace(" ", "_")
        group = "bare" if match["bare"] else "quoted" if match["quoted"] else "lines"
        if _is_secret(name, match, match[group]):
            more = _MORE_VALUES.match(text, match.end()) if name.lower().endswith("s") else None
            parts += [text[position : match.start(group)], TOKEN, text[match.end(group) : match.end()]]
            position = (more or match).end()
    return "".join([*parts, text[position:]])


def _is_secret(name: str, match: re.Match, value: str) -> bool:
    """A value that `_VALUE` found behind a name is a secret."""
    if _HARMLESS.fullmatch(value) or _SPECIAL_TOKEN.search(name):
        return False
    if match["opens"] and names_secret(value):  # os.environ["HF_TOKEN"] shows the name alone
        return False
    if _OPTION.match(name) and not match["tags"]:
        return True
    if match["blank"] and not re.search("[_-]|(?i:^pass)", name):
        return False
    looks = bool(_LOOKS.match(value))
    if _SECRET_NAME.search(name):
        return looks or not match["weak"]
    passwords = name.lower() == "passwords" and not match["bare"]
    return bool(_MAYBE_SECRET.match(name)) and not match["weak"] and not match["subscript"] and (looks or passwords)


def names_secret(text: str) -> bool:
    """Recognise a text that is the name of a secret and nothing else: what stands next to it is one.

    Example:
        >>> names_secret("api_key:"), names_secret("the api key is private")
        (True, False)
    """
    name = text.strip(" :=\"'")
    if not re.fullmatch(r"[\w-]{1,99}", name) or _SPECIAL_TOKEN.search(name):
        return False
    return bool(_SECRET_NAME.search(name) or _OPTION.match(name) or re.fullmatch("(?i)(?:set-)?cookie|passwords", name))


def looks_like_token(name: str, value: str) -> bool:
    """Recognise a secret by its value or by its name; 40 hex digits are one unless the name speaks of commits.

    Example:
        >>> looks_like_token("api_key", "abc1"), looks_like_token("eos_token", "</s>")
        (True, False)
    """
    commit = re.search(r"(?i)commit|revision|sha|hash", name)
    hidden = any(hide_tokens(text) != text for text in (f"{name}={value}", value))
    return hidden or (not commit and bool(HEX40.fullmatch(value.strip())))


def _header(match: re.Match) -> str:
    return match[0] if _HARMLESS.fullmatch(match[0][len(match["before"]) :].strip()) else match["before"] + TOKEN


def map_text(value, change: Callable[[str], str], *, secret: bool = False):
    """A JSON value with `change` applied to every string and key; what a secret's name stands before is a token.

    Example:
        >>> map_text({"words": ["a", 1], "password": "b"}, str.upper)
        {'WORDS': ['A', 1], 'PASSWORD': '[token]'}
    """
    if isinstance(value, str):
        return TOKEN if secret and value and not _HARMLESS.fullmatch(value) else change(value)
    if isinstance(value, dict):
        changed = {}
        for key, inner in value.items():
            name = change(str(key))
            while name in changed:
                name += "'"
            named = names_secret(str(key)) or (key == "value" and _is_of_secret(value))
            changed[name] = map_text(inner, change, secret=secret or named)
        return changed
    if isinstance(value, list | tuple):
        named = [False, *(isinstance(before, str) and names_secret(before) for before in value)]
        return [map_text(inner, change, secret=secret or own) for inner, own in zip(value, named, strict=False)]
    return value


def _is_of_secret(value: dict) -> bool:
    """An object whose `value` is a secret: `{"name": "HF_TOKEN", "value": ...}`, or a widget for passwords."""
    said = (value.get(key) for key in ("name", "key", "description"))
    return value.get("_model_name") == "PasswordModel" or any(isinstance(s, str) and names_secret(s) for s in said)


# A private key that comes line by line. A logger may put its prefix before each line.
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}-----")
_HALF_END = re.compile(r"-----END[A-Z0-9 ]{0,41}-{0,4}\Z")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{16,}(?:\\n|[\s\"',)\]]){0,9}\Z|\A\s*[A-Za-z0-9+/=]{1,80}\s*\Z")
# Other lines of a key: empty ones, its headers, and the checksum of PGP.
_KEY_HEADER = re.compile(r"\A\s*\Z|(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset): |(?<![\w=])=[\w+/]{4}\s*\Z")


def stream_hider() -> Callable[[str], str]:
    """`hide_tokens` for a text that comes in pieces: a secret's name, or the begin of a key, may stand in a piece before.

    Example:
        >>> hide = stream_hider()
        >>> hide("HF_TOKEN="), hide("abc1\\n")
        ('HF_TOKEN=', '[token]\\n')
    """
    before = ""
    shown = ""  # of `before`

    def hide(piece: str) -> str:
        nonlocal before, shown
        text = before + piece
        closed, key_at = _close_keys(text)
        whole = hide_tokens(closed)
        different = (n for n, (a, b) in enumerate(zip(shown, whole, strict=False)) if a != b)
        start = len(shown) if whole.startswith(shown) else next(different, len(whole))
        last_lines = "\n".join(text.rsplit("\n", 2)[-2:])[-500:]
        before = last_lines if key_at is None else text[key_at:]
        shown = hide_tokens(_close_keys(before)[0])
        return whole[start:]

    return hide


def _close_keys(text: str) -> tuple[str, int | None]:
    """`text` with an end put to each private key that has none, and where a key begins that the next piece may go on with."""
    parts = []
    position = 0
    while begin := _KEY_BEGIN.search(text, position):
        body = text[begin.end() : begin.end() + _LONGEST_KEY]
        if other := _KEY_BEGIN.search(body):
            body = body[: other.start()]
        if end := _KEY_END.search(body):
            stop = begin.end() + end.end()
            parts.append(text[position:stop])
        else:
            length = _key_length(body)
            stop = begin.end() + length
            parts += [text[position : begin.end()], _HALF_END.sub("", body[:length]), "-----END PRIVATE KEY-----"]
            if stop == len(text):
                return "".join(parts), begin.start()
        position = stop
    return "".join([*parts, text[position:]]), None


def _key_length(body: str) -> int:
    """The number of characters of a key that has begun: all up to the second line in a row that no key has."""
    length = 0
    others = 0
    *lines, unfinished = body.split("\n")
    for line in lines:
        if _KEY_LINE.search(line):
            others = 0
        elif not _KEY_HEADER.search(line):
            others += 1
        if others == 2:
            return length - 1
        length += len(line) + 1
    return length + len(unfinished)
