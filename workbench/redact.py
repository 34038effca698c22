"""What must not be shared, taken out of text: access tokens from every report, and on request hosts, users and paths.

Pure: text in, text out. Every pattern starts at a boundary or is bounded, so that a line of a megabyte stays cheap.
"""

import dataclasses
import ipaddress
import re
from collections.abc import Callable, Iterable

TOKEN, HOST, USER, PATH = "[token]", "[host]", "[user]", "[path]"

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
    rf"(?P<before>(?<![\w-])(?:--?)?{_SECRET_NAME}[\"']?\s{{0,4}}[=:]\s{{0,4}}(?:(?i:basic|token|bearer)\s{{1,4}})?"
    r"|(?<![\w-])--(?i:[a-z-]{0,40}(?:token|api-key|secret|password))\s{1,4})"
    r"(?:\"(?P<double>[^\"\n]{1,5000})\"|'(?P<single>[^'\n]{1,5000})'|(?P<bare>[^\s\"'<>,;&)\]}]{1,5000}))"
)
_NAME_ALONE = re.compile(rf"(?:--?)?{_SECRET_NAME}|--(?i:[a-z-]*(?:token|api-key|secret|password))")
_HARMLESS = re.compile(
    r"\[token\]?|None|null|True|False|true|false|str|bool|int|\$.*|os\.environ.*|getenv.*|getpass.*|-.*|\*+"
)
_HEX40 = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_SAYS_COMMIT = re.compile(r"(?i)(?:commit|revision|rev|sha1?|tree|snapshots)[\"'\s=:/@]{0,6}\Z")
_SAYS_WANDB = re.compile(r"(?i)wandb\S{0,20}\s{0,3}\S{0,20}[\"'\s=:]{0,6}\Z")
_URL = re.compile(
    r"(?P<scheme>(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{1,15}://)(?P<host>[A-Za-z0-9\[][^\s/?#\"'<>`(){},;=]{0,400})?"
    r"(?P<tail>[/?#][^\s\"'<>`]{0,4000})?"
)
_CREDENTIALS = re.compile(r"(?<=://)[^\s/?#\"'<>`]{1,400}@")
_QUERY_SECRET = re.compile(
    r"(?i)([?&#](?:[\w-]{0,40}(?:token|key|secret|password|sig|signature|credential|auth))=)[^&#\s\"'<>`]{1,4000}"
)


def hide_tokens(text: str) -> str:
    """`text` with everything that looks like an access token, password or private key replaced by `[token]`.

    A bare run of 40 hex digits is a git commit as often as a wandb key: it is taken for a key only beside that word.
    """
    text = _TOKENS.sub(TOKEN, text)
    text = _QUERY_SECRET.sub(rf"\1{TOKEN}", _CREDENTIALS.sub(f"{TOKEN}@", text))
    text = _ASSIGNED.sub(_assigned, text)
    return _HEX40.sub(lambda m: TOKEN if _SAYS_WANDB.search(text[max(0, m.start() - 60) : m.start()]) else m[0], text)


def looks_like_token(name: str, value: str) -> bool:
    """Whether a value, or its name, says that it is a secret; 40 hex digits are one unless the name speaks of commits."""
    told = f"{name}={value}"
    commit = re.search(r"(?i)commit|revision|sha|hash", name)
    return (
        hide_tokens(told) != told
        or hide_tokens(value) != value
        or (not commit and bool(_HEX40.fullmatch(value.strip())))
    )


def _assigned(match: re.Match) -> str:
    value = match["double"] or match["single"] or match["bare"]
    if _HARMLESS.fullmatch(value):
        return match[0]
    quote = '"' if match["double"] else "'" if match["single"] else ""
    return f"{match['before']}{quote}{TOKEN}{quote}"


# --- hosts, users, paths -------------------------------------------------------------------------------------------

_PART = r"[^\s/\\\"'`<>|:;,()\[\]{}*?=&]+"
_HOMES = (
    r"(?:home|Users|users|u|scratch|work|data|mnt|nfs|lustre|gpfs|fsx|export|root|tmp|var|opt|usr|etc|srv|private"
    r"|workspace|storage)"
)
_PATHS = re.compile(
    rf"\"(?P<double>(?:/[^\"\n/]{{1,255}}){{2,40}}/?)\"|'(?P<single>(?:/[^'\n/]{{1,255}}){{2,40}}/?)'"  # may hold blanks
    rf"|(?P<posix>(?<![\w.~\])}}/<-])/{_PART}(?:/{_PART})+/?|(?<![\w.~\])}}/<])/{_HOMES}(?![\w-])/?"
    rf"|/(?:home|Users)/{_PART}(?:/{_PART})*/?|~{_PART}/{_PART}(?:/{_PART})*)"
    r"|(?P<windows>(?<![A-Za-z])[A-Za-z]:\\{1,2}[^\s\"'<>|:*?]+|(?<!\\)\\\\[\w.-]+\\[^\s\"'<>|:*?]+)"
)
_FILE = re.compile(
    r"(?:(?:site|dist)-packages/.+|[^/\\]+\.(?:py|ipynb|jsonl?|parquet|html|txt|csv|log|ya?ml|toml|safetensors|sh|so))\Z"
)
_IN_URL = re.compile(rf"/(?:home|Users)/{_PART}(?:/{_PART})*/?")
_PRIVATE_HOST = re.compile(
    r"[\w-]+(?:\.[\w-]+)*\.(?:local|internal|lan|corp|intra|cluster|localdomain|home)|[A-Za-z][\w-]*"
)
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_INSIDE = re.compile(r"(?<![\w.-])[\w-]{1,63}(?:\.[\w-]{1,63}){0,6}\.(?:internal|lan|corp|intra|localdomain)(?![\w-])")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\d|\.\d)(?P<port>:\d{2,5})?")
_IPV6 = re.compile(r"(?<![\w:])[0-9A-Fa-f]{3,4}:(?:[0-9A-Fa-f]{0,4}:){1,6}[0-9A-Fa-f]{0,4}(?![\w:])")
_LOCAL = ("localhost", "localhost.localdomain", "127.0.0.1", "0.0.0.0")
_NOBODY = ("root", "user", "users", "shared", "runner")  # not a person, and too common a word


def users_in(text: str) -> set[str]:
    """User names that home folders in the text give away."""
    return set(re.findall(rf"(?:/home/|/Users/|\\Users\\{{1,2}})({_PART})", text)) - set(_NOBODY)


@dataclasses.dataclass(frozen=True)
class Redactor:
    """Replaces hosts, users, absolute paths and tokens by `[host]`, `[user]`, `[path]`, `[token]`, everywhere alike.

    Of a path the file name stays where it has a usual ending, and what lies below `site-packages`.

    Args:
        hosts: names of machines, short or full; the short form of a full name counts too.
        users: login names of two characters or more.
        commits: git commits that stay; other runs of 40 hex digits go, unless the words before call them a commit.
    """

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()

    def text(self, text: str) -> str:
        """The text without them; twice is the same as once."""
        text = hide_tokens(text)
        text = _HEX40.sub(lambda m: m[0] if self._commit(text, m) else TOKEN, text)
        pieces, end = [], 0
        for url in _URL.finditer(text):  # their paths are nobody's folders
            pieces += [self._plain(text[end : url.start()]), self._url(url)]
            end = url.end()
        return "".join([*pieces, self._plain(text[end:])])

    def value(self, value):
        """The same for every string, key and list item within a JSON value."""
        return map_text(value, self.text)

    def _commit(self, text: str, match: re.Match) -> bool:
        return match[0] in self.commits or bool(_SAYS_COMMIT.search(text[max(0, match.start() - 20) : match.start()]))

    def _url(self, match: re.Match) -> str:
        if match["scheme"].lower() == "file://":
            return PATH
        credentials, at, host = (match["host"] or "").rpartition("@")
        name, colon, port = host.partition(":") if not host.startswith("[") else (host, "", "")
        if name.lower() not in _LOCAL and (
            _PRIVATE_HOST.fullmatch(name) or self._names(name) != name or _address(name)
        ):
            name = HOST
        tail = _IN_URL.sub(PATH, match["tail"] or "")
        return match["scheme"] + credentials + at + name + colon + port + self._names(tail)

    def _plain(self, text: str) -> str:
        text = _PATHS.sub(_path, text)
        text = _EMAIL.sub(f"{USER}@{HOST}", text)
        text = _INSIDE.sub(HOST, text)
        text = _IPV4.sub(lambda m: f"{HOST}{m['port'] or ''}" if _address(m[0], bool(m["port"])) else m[0], text)
        text = _IPV6.sub(lambda m: HOST if _address(m[0]) else m[0], text)
        return self._names(text)

    def _names(self, text: str) -> str:
        for names, label in ((self._host_names(), HOST), (self.users, USER)):
            wanted = sorted({n for n in names if len(n) > 1 and n not in _NOBODY}, key=len, reverse=True)
            if wanted:
                either = "|".join(map(re.escape, wanted))
                labels = r"(?!(?<=\[)(?:token|host|user|path)\])"
                domain = r"(?:\.[A-Za-z][\w-]*)*" if label is HOST else ""
                text = re.sub(rf"(?i)(?<![A-Za-z0-9]){labels}(?:{either}){domain}(?![A-Za-z0-9])", label, text)
        return text

    def _host_names(self) -> set[str]:
        return {n for host in self.hosts for n in (host, host.partition(".")[0])} - set(_LOCAL)


def _path(match: re.Match) -> str:
    quote = '"' if match["double"] else "'" if match["single"] else ""
    path = match[0].strip(quote) if quote else match[0]
    kept = _FILE.search(path)
    deep = len(re.findall(r"[/\\]+", path)) > 2  # `/home/alice.sh` is somebody's folder as likely as a file
    return f"{quote}{PATH}{'/' + kept[0] if kept and deep else ''}{quote}"


def _address(text: str, with_port: bool = False) -> bool:
    """Whether this is a machine's IP address; a version of four numbers is one only in a private range or with a port."""
    try:
        address = ipaddress.ip_address(text.rpartition(":")[0] if with_port else text.strip("[]"))
    except ValueError:
        return False
    named = address.version == 6 or with_port or (address.is_private and not address.is_reserved)
    return named and not address.is_loopback and not address.is_unspecified


def map_text(value, change: Callable[[str], str]):
    """A JSON value with `change` applied to every string and key; what a secret's name stands before is a token.

    Args:
        value: of dictionaries, lists, strings and anything else, which stays.
        change: text -> text.
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


def redactor(texts: Iterable[str], hosts: Iterable[str], users: Iterable[str], commits: Iterable[str] = ()) -> Redactor:
    """A redactor that also knows the users whose home folders the texts name."""
    found = {name for text in texts for name in users_in(text)}
    return Redactor(
        tuple(sorted(filter(None, hosts))), tuple(sorted({*filter(None, users), *found})), tuple(filter(None, commits))
    )
