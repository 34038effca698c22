"""Writes rules.md from the rules' own texts and the real runs of the corpus. `python docs/rules.py`."""

import ast
import inspect
import json
import re
from functools import cache
from pathlib import Path

from workbench.audit.check import RULES
from workbench.audit.report import audit_run, paragraph

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "audit" / "corpus"
START = """# The rules of the audit

Written by `python docs/rules.py` from the rules and from real runs of `tests/audit/corpus/`. What severities and exit codes
mean, and how far it all can be trusted: [audit.md](audit.md). A metric that a finding contradicts is used by no later rule. A
finding that another explains says so.
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
    words = (k.value for c in calls if isinstance(c, ast.Call) for k in c.keywords if k.arg == "advice")
    (first, *_) = [w for w in words if isinstance(w, ast.Constant | ast.JoinedStr)]
    parts = first.values if isinstance(first, ast.JoinedStr) else [first]
    return "".join(part.value if isinstance(part, ast.Constant) else "NAME" for part in parts)


def section(rule) -> str:
    """The part of the page about one rule."""
    doc = inspect.getdoc(rule).partition("\nExample:")[0].strip()
    what, _, rest = doc.partition("\n\n")
    rest, _, wrong = rest.partition("Wrong where: ")
    name = rule.__name__.replace("_", "-")
    parts = [f"## {name}\n", f"**What it says.** {what}\n"]
    if name in examples():
        _, about, run, finding = examples()[name]
        parts += [f"**A real log**, `{run}`: {about}.\n", "```text", *paragraph(finding), "```\n"]
    else:
        parts += ["No run of the corpus shows it.\n"]
    parts += [f"**What to do.** {examples()[name][-1].advice if name in examples() else advice(rule)}\n"]
    how = re.sub("^How: ", "", rest.strip(), flags=re.MULTILINE)
    parts += [f"**How it is computed.** {how[:1].upper()}{how[1:]}\n"]
    return "\n".join([*parts, f"**When it is wrong.** Where {wrong.strip()}\n"])


def page() -> str:
    """The whole page."""
    return "\n".join([START, *[section(rule) for rule in RULES]])


if __name__ == "__main__":
    (ROOT / "docs" / "rules.md").write_text(page())
