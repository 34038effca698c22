"""What must not be shared, taken out of text: secrets from every report, and on request hosts, users and paths.

Pure: text in, text out. Every pattern starts at a boundary or is bounded, so that a line of a megabyte stays cheap.
"""

import dataclasses
import ipaddress
import re
from collections.abc import Callable, Collection, Sequence

from ...runs.secrets import HEX40, TOKEN, hide_tokens, names_secret

HOST, USER, PATH = "[host]", "[user]", "[path]"
_SAYS_COMMIT = re.compile(r"(?i)(?:commit|revision|rev|sha1?|tree|snapshots)[\"'\s=:/@]{0,6}\Z")
_URL = re.compile(
    r"(?P<scheme>(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{1,15}://)(?P<host>[A-Za-z0-9][^\s/?#\"'<>`(){},;=]{0,400})?"
    r"(?P<tail>[/?#][^\s\"'<>`]{0,4000})?"
)


def changed_together(texts: Sequence[str], change: Callable[[str], str], before: str = "") -> list[str]:
    """Pieces that a reader sees as one text, changed as one."""
    told = [change(text) for text in texts]
    name = f"{before.rstrip(' :=')}: " if names_secret(before) else ""
    if len(texts) == 1 and not name:
        return told
    named = change(name + "".join(texts))
    whole = named.removeprefix(name) if named.startswith(name) else change("".join(texts))
    if whole == "".join(told):
        return told
    for text, hidden in zip(texts, told, strict=True):
        whole = whole.replace(text, hidden) if text != hidden else whole
    return [whole, *[""] * (len(texts) - 1)]


# --- hosts, users, paths -------------------------------------------------------------------------------------------


_NOT_IN_A_PART = r"\s\\\"'`<>|:;,()\[\]{}*?=&"
_PART = rf"[^/{_NOT_IN_A_PART}]+"
ODD = re.compile(f"[{_NOT_IN_A_PART}]")  # in a path: it is found in a text only where it is known
_QUOTED = (  # may hold blanks
    r"\"(?P<double>(?:/[^\"\n/]{1,255}){2,40}/?)\"|'(?P<single>(?:/[^'\n/]{1,255}){2,40}/?)'"
)
_PATHS = re.compile(
    rf"{_QUOTED}|(?<![\w.~\])}}/<-])/{_PART}(?:/{_PART})+/?|/(?:home|Users)/{_PART}(?:/{_PART})*/?|~{_PART}/{_PART}(?:/{_PART})*"
)
_FILE = re.compile(
    r"(?:(?:site|dist)-packages/.+|[^/]+\.(?:py|ipynb|jsonl?|parquet|html|txt|csv|log|ya?ml|toml|safetensors|sh|so))\Z"
)
_IN_URL = re.compile(rf"/(?:home|Users)/{_PART}(?:/{_PART})*/?")
_PRIVATE_HOST = re.compile(r"[\w-]+(?:\.[\w-]+)*\.(?:local|internal)|[A-Za-z][\w-]*")
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_LOGIN = re.compile(r"(?<![\w.+@-])[a-z_][\w-]{0,31}@[\w-]{1,63}(?=:(?:\s|/|~|\[|$))")  # bob@node03:
_INSIDE = re.compile(r"(?<![\w.-])[\w-]{1,63}(?:\.[\w-]{1,63}){0,6}\.(?:local|internal)(?![\w-])")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\d|\.\d)(?P<port>:\d{2,5})?")
_LOCAL = ("localhost", "localhost.localdomain", "127.0.0.1", "0.0.0.0")
_NOBODY = ("root", "user", "users", "shared", "runner")  # not a person, and too common a word


def users_in(text: str) -> set[str]:
    """User names that home folders in the text give away."""
    return set(re.findall(rf"/(?:home|Users)/({_PART})", text)) - set(_NOBODY)


@dataclasses.dataclass(frozen=True)
class Redactor:
    """Replaces hosts, users, absolute paths and secrets by `[host]`, `[user]`, `[path]`, `[token]`, everywhere alike.

    Of a path the file name stays where it has a usual ending, and what lies below `site-packages`.

    Args:
        hosts: names of machines, short or full; the short form of a full name counts too.
        users: login names of two characters or more.
        commits: git commits that stay; other runs of 40 hex digits go, unless the words before call them a commit.

    Example:
        >>> Redactor(hosts=["gpu17"], users=["zoe"]).text("zoe on gpu17: /home/zoe/lab/run.py")
        '[user] on [host]: [path]/run.py'
    """

    hosts: Collection[str] = ()
    users: Collection[str] = ()
    commits: Collection[str] = ()
    folders: Collection[str] = ()

    def text(self, text: str) -> str:
        """The text without them; twice is the same as once."""
        text = hide_tokens(text)
        if self.folders:  # with a blank or the like in it, a path ends in a text nobody knows where
            known = "|".join(map(re.escape, sorted(self.folders, key=len, reverse=True)))
            text = re.sub(rf"{_QUOTED}|(?:{known})(?:/{_PART})*/?", _path, text)
        text = HEX40.sub(lambda m: m[0] if self._commit(text, m) else TOKEN, text)
        pieces, end = [], 0
        for url in _URL.finditer(text):  # their paths are nobody's folders
            pieces += [self._plain(text[end : url.start()]), self._url(url)]
            end = url.end()
        return "".join([*pieces, self._plain(text[end:])])

    def _commit(self, text: str, match: re.Match) -> bool:
        return match[0] in self.commits or bool(_SAYS_COMMIT.search(text[max(0, match.start() - 20) : match.start()]))

    def _url(self, match: re.Match) -> str:
        if match["scheme"].lower() == "file://":
            return PATH
        credentials, at, host = (match["host"] or "").rpartition("@")
        name, colon, port = host.partition(":")
        if name.lower() not in _LOCAL and (
            port or _PRIVATE_HOST.fullmatch(name) or self._names(name) != name or _address(name)
        ):
            name = HOST
        tail = _IN_URL.sub(PATH, match["tail"] or "")
        return match["scheme"] + credentials + at + name + colon + port + self._names(tail)

    def _plain(self, text: str) -> str:
        text = _PATHS.sub(_path, text)
        text = _EMAIL.sub(f"{USER}@{HOST}", text)
        text = _LOGIN.sub(f"{USER}@{HOST}", text)
        text = _INSIDE.sub(HOST, text)
        text = _IPV4.sub(lambda m: f"{HOST}{m['port'] or ''}" if _address(m[0], bool(m["port"])) else m[0], text)
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
    deep = path.count("/") > 2  # `/home/alice.sh` is somebody's folder as likely as a file
    return f"{quote}{PATH}{'/' + kept[0] if kept and deep else ''}{quote}"


def _address(text: str, with_port: bool = False) -> bool:
    """Say whether this is a machine's IPv4 address; a version of four numbers is one only in a private range or with a port."""
    try:
        address = ipaddress.IPv4Address(text.rpartition(":")[0] if with_port else text)
    except ValueError:
        return False
    private = address.is_private and not address.is_reserved
    return (with_port or private) and not address.is_loopback and not address.is_unspecified
