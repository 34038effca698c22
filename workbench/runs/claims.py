"""The published claims that results confirm or refute: their words, and the thread where they were made."""

import dataclasses
import functools
import html
import json
import re

from ..extras import packaged


@dataclasses.dataclass(frozen=True)
class Claim:
    """A published claim: its words, whether it was true when it was reported, and its threads as `owner/name#number`."""

    words: str
    when_reported: str
    threads: tuple[str, ...]

    def __str__(self) -> str:
        return f'the claim "{self.words}" ({", ".join(map(_short, self.threads))})'

    @property
    def links(self) -> dict[str, str]:
        """What a thread is called -> its address."""
        return {_short(t): f"https://github.com/{t.replace('#', '/issues/')}" for t in self.threads}

    def as_html(self) -> str:
        """Quote the words, with a link to each thread."""
        words = re.sub("`(.+?)`", r"<code>\1</code>", html.escape(self.words))
        links = ", ".join(f'<a href="{html.escape(to)}">{html.escape(name)}</a>' for name, to in self.links.items())
        return f"<q>{words}</q> ({links})"


def _short(thread: str) -> str:
    return thread.partition("/")[2]


@functools.cache
def load_claims() -> dict[str, Claim]:
    """Claim id -> claim, of `data/claims.json` and `data/claim_sources.json`."""
    known, threads = _read("claims.json"), _read("claim_sources.json")["threads"]
    return {
        name: Claim(one["claim"], one["when_reported"], tuple(threads.get(name) or threads[name.partition(".")[0]]))
        for name, one in known.items()
    }


def claim_titles() -> dict[str, str]:
    """Id of each write-up, such as `A0` -> its subject."""
    return _read("claim_sources.json")["titles"]


def _read(name: str) -> dict:
    return json.loads((packaged("data") / name).read_text(encoding="utf-8"))
