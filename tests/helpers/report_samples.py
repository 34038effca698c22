"""Runs for the tests of reports: one whose every text is hostile, and one that has a secret in every place."""

import base64
import json
import re
from html.parser import HTMLParser

import nbformat.v4 as v4
import pandas as pd
from conftest import write_run

from workbench.curves.figures import show_training
from workbench.runs.files import write_json

HOSTILE = {
    "script": "<script>window.ran = 1</script>",
    "broken attribute": '"><img src=x onerror="window.ran = 1">',
    "closing tags": "</td></table></main></body><iframe src='https://example.org'></iframe>",
    "style": "<style>@import url(https://example.org/x.css)</style>",
    "refresh": "<meta http-equiv=refresh content='0;url=https://example.org'>",
    "svg": "<svg><script>window.ran = 1</script><a href='javascript:window.ran=1'>x</a></svg>",
    "mutation": "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=window.ran=1&gt;'>",
    "cover": "<div style='position:fixed;inset:0;background:red'>over everything</div>",
    "form": "<form action='https://example.org'><button autofocus onfocus='window.ran=1'>x</button></form>",
    "template": "{{ 7 * 7 }} {% include 'x' %}",
    "markdown": "[x](javascript:window.ran=1) ![x](https://example.org/x.png) <b onclick='window.ran=1'>y</b>",
    "entity": "&lt;b&gt;",
    "ansi": "\x1b[31mred\x1b[0m \x1b]8;;https://example.org\x07link",
    "right to left": "\u202eabc\u202c \u2067x\u2069 \u200fy",
    "hebrew": "\u05d0\u05d1\u05d2 12 \u05d3\u05d4",
    "never closed": "\u202e\u2066\u202b",
    "invisible": "a\u200bb\u2060c\ufeffd\u00ade\U000e0041f",
    "nul": "a\x00b\x08\x7f\x9b",
    "line separators": "a\u2028b\u2029c\rd\x85e",
    "stacked accents": "z" + "\u0301" * 3000,
    "one long line": "x" * 1_000_000,
    "no text": "",
}
METRICS = [
    {"step": n, "reward": -30 + n, "completions/mean_length": 9.0, "completions/clipped_ratio": 0.0, "loss": 0.1}
    for n in range(1, 21)
]


def result_row(says: str, holds: bool | None, why: str = "", claim: str = "") -> dict:
    return {"says": says, "holds": holds, "why": why, "claim": claim}


RESULT = {
    "headline": {"name": "reward, last 20 steps", "value": -4.0123},
    "results": [result_row("<b>bold</b> rises", True), result_row("it fell", False),
                result_row("not tried", None, "not run: needs 8 GPUs"), result_row("<i>-4</i>", True, claim="A4.3")],
    "numbers": {"lowest": -30.0, "steps": 20},
}  # fmt: skip
SURROGATE = "a\ud800b"
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0041]"
)


def picture() -> bytes:
    return show_training(pd.DataFrame(METRICS[:9]), title="another").png()


def outputs_of(texts: list[str]) -> list:
    """Every kind of output that text can come through, as a kernel would have saved it; one of them unescaped."""
    table = pd.DataFrame({"completion": texts})
    shown = [
        {"text/html": "<p>raw</p>".join(texts)},
        {"text/html": show_training(pd.DataFrame(METRICS), title="hand-made")._repr_html_()},
        {"image/png": base64.b64encode(picture()).decode()},
        {"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"},
        {"application/javascript": "window.ran = 1"},
        {"text/markdown": texts[0], "application/x-unknown": "x"},
    ]
    return [
        v4.new_output("stream", name="stdout", text="\n".join(texts) + SURROGATE),
        v4.new_output("execute_result", {"text/plain": repr(table), "text/html": table._repr_html_()}),
        *(v4.new_output("display_data", data) for data in shown),
        v4.new_output("error", ename="ValueError", evalue=texts[0], traceback=["\x1b[31m" + t for t in texts]),
    ]


def write_notebook_of(run, texts: list[str], name: str = "executed.ipynb") -> None:
    cells = [
        v4.new_markdown_cell("# A notebook\n## Question\nIs it <b>so</b>?\n\n" + "\n\n".join(texts)),
        v4.new_markdown_cell("## Parameters"),
        v4.new_code_cell("seed: int = 0  # of everything; 0..9", metadata={"tags": ["parameters"]}),
        v4.new_markdown_cell("## Measure"),
        v4.new_code_cell("x = '<b>'\n" + texts[0], outputs=outputs_of(texts), execution_count=1),
        v4.new_code_cell("never run"),
    ]
    (run.path / name).write_text(json.dumps(v4.new_notebook(cells=cells)))


def hostile_run(root):
    texts = list(HOSTILE.values())
    same = {"finish_reason": "stop", "reward": -1.0}
    rows = [{"step": n % 2, "prompt": text, "completion": text, **same} for n, text in enumerate(texts)]
    named = [result_row(f"{name}: {text[:3000]}", True) for name, text in HOSTILE.items()]
    named += [result_row(SURROGATE, False), *(result_row(SURROGATE, None, t or "unknown", t[:99]) for t in texts)]
    result = {"headline": {"name": HOSTILE["script"] + HOSTILE["right to left"], "value": SURROGATE}}
    result |= {"results": RESULT["results"] + named, "numbers": dict.fromkeys(texts, 1.0)}
    params = {"seed": 1, "model": "starter", "surrogate": SURROGATE} | {f"odd{n}": t for n, t in enumerate(texts)}
    run = write_run(root, metrics=METRICS, result=result, params=params, completions=rows)
    finding = {"severity": "problem", "because": "", "expected": False}
    findings = [finding | dict.fromkeys(("title", "says", "advice"), text) for text in texts]
    trainings = [{"name": text, "checked": 1, "rules": 2, "findings": findings} for text in texts[:2]]
    write_json(run.path / "audit.json", {"trainings": trainings, "error": texts[0]})
    write_notebook_of(run, texts)
    (run.path / "log.txt").write_text("\n".join(texts), encoding="utf-8", errors="backslashreplace")
    return run


def without_images(page: str) -> str:
    """A page with the data of its images left out, so that searching it finds text only."""
    return re.sub(r'src="data:[^"]*"', "", page)


class Elements(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data):
        self.text.append(data)


def order(page: str, *texts: str) -> bool:
    """Whether the texts stand in a page in this order."""
    places = [page.index(text) for text in texts]
    return places == sorted(places)
