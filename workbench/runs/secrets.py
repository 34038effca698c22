"""Secrets, taken out of every text that leaves a run: reports, logs, status and error lines."""

import re
from collections.abc import Callable

from .text import ESCAPES, UNSEEN

TOKEN = "[token]"
# Secrets with a form of their own that stand in the logs of trainings, each behind what stands in it. Others are found by the
# names next to them.
_FORMS = {
    "-----begin": r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----(?:BEGIN|END))){0,20000}-----END [A-Z0-9 ]{0,40}-----|(?:[\w+/=:,\s.-]|\\n){0,20000})",
    "hf_": r"hf_[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{4,}(?=\.\.\.|…)",
    "gh": r"gh[pousr]_[A-Za-z0-9]{20,}",
    "gl": r"gl(?:pat|rt|dt|ft|cbt|ptt|soat|agent)-[\w-]{16,}",
    "wandb_v": r"wandb_v\d+_\w{20,}",
    "hooks.slack": r"hooks\.slack\.com/[a-z]+/[\w/-]{16,}",
    "xox": r"(?<![\w-])xox[a-z]-[\w-]{10,}",
    "k-": r"(?<![\w-])[srp]k-(?:(?=[\w-]*[0-9A-Z])[\w-]{16,}|[a-z]{32,})",  # of OpenAI, Anthropic, OpenRouter and others
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
    r"|PASSWORDS|(?i:passwords(?=[\"']|\s{0,4}[=:]\s{0,4}[\"'\[({]|\Z)|password|passwd|passphrase|[_-]pass|[_-]pwd|secrets?|credentials?|apikeys?|authorization|x-amz-(?:signature|credential)"
    rf"|token(?:{_owned('token')}|(?<=\bid[_-]token))|key{_owned('key')}s?(?:[_-](?:id|data))?))"
)
# An element of HTML that may stand between a name and its value; `<th>` is none, as it begins another name.
_TAG = (
    r"(?:\s{0,40}(?:</\w{1,10}>|<(?:td|dd|p|br|b|i|em|a|pre|code|div|font|kbd|li|mark|samp|small|span|strong|tspan|tt|text"
    r"|value)(?:\s[^<>]{0,200})?>))"
)
_SIGN = r"\s{0,4}(?::=|==?|!=|:)\s{0,4}"
_OPENS = (
    r"(?P<opens>(?:(?:[A-Za-z_][\w.]{0,40})?[(\[{]\s{0,4}(?:[\"']\w{1,40}[\"']\s{0,4}:\s{0,4})?){0,2}[bBrRfFuU]{0,2})"
)
# What looks a value up by its name: `os.getenv("KEY") or "value"`, `config.get("key", "value")`
_LOOKS_UP = r"[\w.]{0,40}(?:get|env|environ|pop|default)[(\[]\s{0,4}"
_ELSE = rf"{_LOOKS_UP}[\"'][\w-]{{1,60}}[\"']\s{{0,4}}(?:,|[)\]]\s{{0,4}}or\b)\s{{0,4}}"
_QUOTED = (
    r"(?:(?P<q>\\{0,3}\"{3}|'{3})(?P<long>(?s:.){1,5000}?)(?P=q)"
    r"|\\{0,3}\"(?P<double>[^\"\n]{1,5000})\"|'(?P<single>[^'\n]{1,5000})')"
)
# What stands behind a weaker name, or a weaker sign, and looks like a secret
_PART = r"[^\s\"'<>,;&)\]}]"
_LOOKS = rf"(?={_PART}{{0,200}}\d)(?={_PART}{{0,200}}[A-Za-z]){_PART}"
_NO_WORD = "".join(f"(?<!(?i:{word}))" for word in ("secret", "secrets", "credentials", "authorization", "[^_-]key"))
_ASSIGNED = re.compile(
    rf"(?P<before>{_SECRET_NAME}\\{{0,3}}[\"']?"
    rf"(?:\]?{_TAG}{{0,4}}\s{{0,4}}"
    r"(?::\s{0,4}(?:typing\.)?(?:str|bytes|Any|Final|Optional|SecretStr)\b[\w.\[\] |]{0,40}=|:=|==?|!=|:)\s{0,4}"
    rf"(?:{_TAG}{{1,4}}\s{{0,4}})?|{_TAG}{{1,4}}\s{{0,40}}(?![:=\s])"
    r"|\s{0,4}[,\n]\s{0,40}[\"']?value[\"']?\s{0,4}:\s{0,4}|\(value=|>(?!\s)"
    rf"|(?:\s{{1,4}}(?:is|was)\s{{1,4}}[\"'`]?|{_NO_WORD}[ \t]{{1,40}})(?={_LOOKS}{{6,}}))"
    r"(?:(?i:basic|token|bearer|apikey|negotiate)\s{1,4})?"
    rf"(?:{_ELSE})?"
    r"|(?<![\w-])--(?i:[a-z-]{0,40}(?:token|api-key|secret|password))(?:\s{0,4}=\s{0,4}|\s{1,4})"
    rf"|%(?:set_)?env\s{{1,4}}\w{{0,60}}?{_SECRET_NAME}[\s=]{{1,4}})"
    rf"(?:{_OPENS}{_QUOTED}|(?P<bare>(?:\[token\])?[^\s\"'<>,;&)\]}}\x1b]{{1,5000}}))"
    # Between a name and its value in code: `getenv("KEY") or "value"`, `("password", "value")`, `auth=("me", "value")`
    rf"|(?P<before2>(?:{_SECRET_NAME}[\"'](?:\s{{0,4}},|\)\s{{0,4}}or)"
    r"|(?i:auth)(?:\s{0,4}=\s{0,4}[\w.]{0,40})?\(\s{0,4}(?:[\"'][^\"'\n]{0,200}[\"']|[\w.]{1,60})\s{0,4},)\s{0,4})"
    r"[\"'](?P<value2>[^\"'\n]{1,5000})(?=[\"'])"
)
_WEAK = re.compile(
    r"(?P<before>(?:(?<![\w-])(?:(?i:token|pass|auth|_xsrf|csrftoken|\w{0,20}session_?id|passwords?)|TOKENS)"
    rf"|(?i:tokens{_owned('tokens')}))[\"']?{_SIGN}[\"'\[(]{{0,3}}){_LOOKS}{{6,}}"
    r"|(?P<login>\b(?:docker|podman|helm|oc)\s+login\b[^\n]{0,200}?\s-p[\s=]+|\bcurl\b[^\n]{0,300}?\s(?:-u|--user)[\s=]+[^\s:]+:"
    r"|\bsshpass\s{1,4}-p\s{0,4}|\b(?:mysql|mariadb)\w{0,10}\s(?:[^\n]{0,300}?\s)?-p)[^\s\x1b]+"
)
# `{"value": "secret", "name": "HF_TOKEN"}`, `Text(value='secret', description='password')`, and the rest of a list whose first
# value is hidden
_VALUE_FIRST = re.compile(
    rf"(?P<before>\bvalue[\"']?\s{{0,4}}[:=]\s{{0,4}}(?P<q>[\"']))[^\"'\n]{{1,2000}}(?P<after>(?P=q)\s{{0,4}},\s{{0,40}}[\"']?"
    rf"(?:name|key|description)[\"']?\s{{0,4}}[:=]\s{{0,4}}[\"'][\w-]{{0,60}}?{_SECRET_NAME}[ :]{{0,4}}[\"'])"
)
_REST = re.compile(
    r"(?P<before>(?i:keys|tokens|passwords|secrets|credentials)[=:]\[token\])(?:,[^\s\"'<>,;&)\]}]{1,2000})+"
    r"|(?P<list>[=:]\s{0,4}\[\s{0,4}(?P<q>[\"'])\[token\](?P=q))(?:\s{0,4},\s{0,4}(?:\"[^\"\n]{0,2000}\"|'[^'\n]{0,2000}'))+"
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
_WRITTEN_COLOUR = re.compile(r"\\(?:x1[bB]|033|e|u001[bB])\[[0-9;]{0,20}m")
HEX40 = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_SAYS_WANDB = re.compile(
    r"(?i)(?:wandb\S{0,20}\s{0,3}\S{0,20}[\"'\s=:]{0,6}|(?:wandb|api key)[^\n]{0,150}[:=]\s{0,4})\Z"
)
_CREDENTIALS = re.compile(r"(?<=://)(?:[^\s/?#\"'<>`]{1,400}|[^\s/?#\"'<>`@:]{1,200}:[^\s/\"<>`]{1,200})@")
_QUERY_SECRET = re.compile(
    r"(?i)([?&#](?:[\w-]{0,40}(?:token|key|secret|password|sig|signature|credential|auth))=)[^&#\s\"'<>`]{1,4000}"
)
# One of these stands in whatever `_HEADER`, `_ASSIGNED` and those below it match, so that most texts need no more than a look.
_MARKS = re.findall(r"\S+", "key token secret pass pwd credent auth x- cookie xsrf session curl login mysql mariadb")


def hide_tokens(text: str) -> str:
    """`text` with everything that looks like an access token, password or private key replaced by `[token]`.

    Characters that cannot be seen, and colours, do not save a secret in which they stand.

    A bare run of 40 hex digits is a git commit as often as a wandb key: it counts as a key only next to that word.

    Example:
        >>> hide_tokens("HF_TOKEN=abc1 git clone https://me:pw@example.org/x")
        'HF_TOKEN=[token] git clone https://[token]@example.org/x'
    """
    read = _seen(text)
    hidden = _hide(read)
    direct = hidden if read == text else _hide(text)  # a terminal does not show the address of a link
    return direct if read == text or _seen(direct) == hidden else hidden


def _seen(text: str) -> str:
    """What a reader sees, and copies; in code a colour may be written as an escape, `\\x1b[32m`."""
    return UNSEEN.sub("", ESCAPES.sub("", _WRITTEN_COLOUR.sub("", text)))


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
        text = _VALUE_FIRST.sub(rf"\g<before>{TOKEN}\g<after>", text)
        text = _REST.sub(lambda m: m["before"] or m["list"], text)
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
    if _HARMLESS.fullmatch(value) or (re.match(_LOOKS_UP, match["opens"] or "") and _NAME_ALONE.fullmatch(value)):
        return match[0]
    if match["value2"]:
        return match[0][: -len(value)] + TOKEN
    quote = match["q"] or ('"' if match["double"] else "'" if match["single"] else "")
    return f"{match['before']}{match['opens'] or ''}{quote}{TOKEN}{quote}"


def map_text(value, change: Callable[[str], str], *, secret: bool = False):
    """A JSON value with `change` applied to every string and key; what a secret's name stands before is a token.

    Example:
        >>> map_text({"words": ["a", 1], "password": "b"}, str.upper)
        {'WORDS': ['A', 1], 'PASSWORD': '[token]'}
    """
    if isinstance(value, str):
        return TOKEN if secret and value and not _HARMLESS.fullmatch(value) else change(value)
    if isinstance(value, dict):
        made = {}
        for key, inner in value.items():
            name = change(str(key))
            while name in made:
                name += "'"
            named = _names(str(key)) or (key == "value" and _is_of_secret(value))
            made[name] = map_text(inner, change, secret=secret or named)
        return made
    if isinstance(value, list | tuple):
        return [map_text(v, change, secret=secret or bool(n and _names(value[n - 1]))) for n, v in enumerate(value)]
    return value


def _names(name) -> bool:
    return isinstance(name, str) and bool(_NAME_ALONE.fullmatch(name))


def _is_of_secret(value: dict) -> bool:
    """Whether an object says that its `value` is a secret: `{"name": "HF_TOKEN", "value": ...}`, or a widget for passwords."""
    said = (value.get(key) for key in ("name", "key", "description"))
    return value.get("_model_name") == "PasswordModel" or any(isinstance(s, str) and names_secret(s) for s in said)


# A private key that comes line by line. A logger may put its prefix before each line.
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}-----")
_HALF_END = re.compile(r"-----END[A-Z0-9 ]{0,41}-{0,4}\Z")
_LONGEST_KEY = 20_000  # characters, as in `_FORMS`
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
