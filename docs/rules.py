"""Writes rules.md and a page for each rule, from the rules and from real runs of the corpus: `python docs/rules.py`."""

import ast
import inspect
import json
import re
from functools import cache
from pathlib import Path

from workbench.audit.check import RULES, name_of
from workbench.audit.report import audit_run, paragraph

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "audit" / "corpus"
START = """# The rules of the audit

Written by `python docs/rules.py` from the rules and from real runs of `tests/audit/corpus/`.

A metric that one finding shows to be wrong is not used by any later rule. A finding that another one explains says so. What
severities and exit codes mean, and how far to trust the rules: [the audit](reference/audit.md).

| rule | question |
|---|---|
"""
TREE = """
```{toctree}
:hidden:

"""


@cache
def examples() -> dict:
    """Rule -> whether a run was made for it, what is wrong with the run, its name, and what the audit finds."""
    found: dict = {}
    manifest = json.loads((CORPUS / "manifest.json").read_text())
    for name, known in manifest.items():
        if known["seed"]:
            continue
        (run,) = audit_run(CORPUS / name, **known["given"]).runs
        for finding in run.findings:
            made_for_it = finding.rule == known["rule"] and (finding.rule not in found or not found[finding.rule][0])
            if finding.verdict == "found" and (made_for_it or (finding.rule not in found and not finding.follows_from)):
                found[finding.rule] = (finding.rule == known["rule"], known["about"], name, finding)
    return found


def advice(rule) -> str:
    """What a rule advises, as it stands in its source."""
    calls = ast.walk(ast.parse(inspect.getsource(rule)))
    words = [c.args[2] for c in calls if isinstance(c, ast.Call) and ast.unparse(c.func) == "found"]
    (first, *_) = [w for w in words if isinstance(w, ast.Constant | ast.JoinedStr)]
    parts = first.values if isinstance(first, ast.JoinedStr) else [first]
    return "".join(part.value if isinstance(part, ast.Constant) else "NAME" for part in parts)


def sections_of(rule) -> tuple[str, str, str]:
    """What a rule asks, how it is computed, and where it is wrong, from its docstring."""
    doc = inspect.getdoc(rule).partition("\nExample:")[0].strip()
    what, _, rest = doc.partition("\n\n")
    rest, _, wrong = rest.partition("Wrong where: ")
    how = re.sub("^How: ", "", rest.strip(), flags=re.MULTILINE)
    return what, how[:1].upper() + how[1:], wrong.strip()


def page_of(rule) -> str:
    """The page about one rule."""
    name, (what, how, wrong) = name_of(rule), sections_of(rule)
    parts = [f"# {name}\n", f"**What it checks.** {what}\n"]
    if name in examples():
        _, about, run, finding = examples()[name]
        parts += [f"**A real log**, `{run}`: {about}.\n", "```text", *paragraph(finding), "```\n"]
    else:
        parts += ["No run of the corpus shows it.\n"]
    parts += [f"**What to do.** {examples()[name][-1].advice if name in examples() else advice(rule)}\n"]
    parts += [f"**How it is computed.** {how}\n", f"**When it is wrong.** Where {wrong}\n"]
    return "\n".join([*parts, "[All rules](../rules.md). This page is written by `python docs/rules.py`.\n"])


def pages() -> dict[str, str]:
    """Path below docs/ -> the whole page."""
    rows = [
        f"| [{name_of(rule)}](rules/{name_of(rule)}.md) | {' '.join(sections_of(rule)[0].split())} |\n"
        for rule in RULES
    ]
    tree = [f"rules/{name_of(rule)}\n" for rule in RULES]
    index = {"rules.md": "".join([START, *rows, TREE, *tree, "```\n"])}
    return index | {f"rules/{name_of(rule)}.md": page_of(rule) for rule in RULES}


if __name__ == "__main__":
    for place, text in pages().items():
        (ROOT / "docs" / place).parent.mkdir(exist_ok=True)
        (ROOT / "docs" / place).write_text(text, encoding="utf-8")
