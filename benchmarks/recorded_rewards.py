"""Asks `reward_report` about trainings that others recorded with their completions, and keeps what was read by hand of each.

    python -m benchmarks.recorded_rewards --sources FOLDER --out data/measured/recorded_rewards.json

`FOLDER` holds a clone of each repository of `RECORDED`, as OWNER+NAME. `right` is a person's judgement of the report, after
reading completions and the reward function; it is kept here, next to the path, and no program makes it.
"""

import io
import re
import subprocess
from pathlib import Path

import pandas as pd

from tools.record import csv_next_to_page, csv_text, made_with, measured, parser, publish, run_main
from workbench.errors import RunError
from workbench.reward.report import RewardReport, reward_report

SUMS = "fortitudelucifer/Illustrated-GRPO"
MATH = "Jerryson520/assignment5-alignment"
COMMITS = {SUMS: "213aa1afe495f81570e7f74b97bf752c89734779", MATH: "98a757e1460db0a3c2268146b3817f0d3c8dbf13"}
_EXACT = "right: a right answer between closed tags is paid; 10 to 19 completions differ, in tags or units"
RECORDED = {  # repository and path -> is the report right, read by hand
    (SUMS, "output/completions"): "right: the reward compares the last number, and two unpaid sums have a comma in it",
    (MATH, "results/grpo_rollouts_seed_0_hrpuh3cm.jsonl"): _EXACT,
    (MATH, "results/grpo_rollouts_seed_1_fieqad6m.jsonl"): _EXACT,
    (MATH, "results/grpo_rollouts_seed_1_spel9iaj.jsonl"): _EXACT,
    (MATH, "results/grpo_rollouts_seed_2_68f8xc03.jsonl"): _EXACT,
    (MATH, "results/grpo_rollouts_seed_2_g621ylkd.jsonl"): _EXACT,
    (MATH, "results/grpo_rollouts_seed_3_7pjwktwx.jsonl"): _EXACT,
    (MATH, "results/grpo_rollouts.jsonl"): "right: one step was recorded, and 17 groups are too few",
}


def stored_file(clone: Path, commit: str, path: str) -> bytes:
    """Read a file of a commit."""
    found = subprocess.run(["git", "-C", str(clone), "show", f"{commit}:{path}"], capture_output=True)
    if found.returncode:
        raise RunError(f"{clone}: no {path} at {commit[:7]}; expected a clone with this commit")
    return found.stdout


def completions_of(clone: Path, commit: str, path: str) -> pd.DataFrame:
    """Read the completions of one training: a file of JSON lines, or a folder of TRL's parquet files."""
    if path.endswith(".jsonl"):
        return pd.read_json(io.BytesIO(stored_file(clone, commit, path)), lines=True, dtype={"ground_truth": str})
    names = stored_file(clone, commit, path).decode().split()
    parts = [stored_file(clone, commit, f"{path}/{name}") for name in names if name.endswith(".parquet")]
    return pd.concat([pd.read_parquet(io.BytesIO(part)) for part in parts], ignore_index=True)


def answers_of(table: pd.DataFrame) -> dict[str, str] | None:
    """Work out the answers of prompts that ask for a sum; None where the record has its answers."""
    if "ground_truth" in table:
        return None
    found = {}
    for prompt in table["prompt"].unique():
        a, b = re.search(r"(\d+)\+(\d+)", prompt).groups()
        found[prompt] = str(int(a) + int(b))
    return found


def row_of(repository: str, path: str, report: RewardReport, right: str) -> dict:
    """What the report says of one training, for the table."""
    said = {"groups": report.groups, "total": report.total, "answers": report.answers, "headline": report.headline}
    return {"repository": repository, "path": path, "verdict": report.verdict} | said | {"right": right}


# --- pages ------------------------------------------------------------------------------------------------------------


def runs_csv() -> str:
    """Make docs/evidence/recorded_rewards.csv: a row for each recorded training."""
    head = ["recorded training", "groups that differ", "right answers explain", "the report says", "read by hand"]
    lines = []
    for row in measured("recorded_rewards")["runs"]:
        place = f"https://github.com/{row['repository']}/tree/{COMMITS[row['repository']]}/{row['path']}"
        name = Path(row["path"]).stem if row["path"].endswith("jsonl") else row["repository"].split("/")[1]
        explained = "" if row["answers"] is None else f"{row['answers']:.2f}"
        groups = f"{row['groups']} of {row['total']}"
        lines.append([f"[{name}]({place})", groups, explained, row["headline"], row["right"]])
    return csv_text(head, lines)


def page() -> list[str]:
    """Make the part of docs/evidence/false_alarms.md."""
    rows = measured("recorded_rewards")["runs"]
    wrong = sum(not row["right"].startswith("right") for row in rows)
    untold = sum(row["verdict"] == "cannot tell" for row in rows)
    return [
        "### Trainings that others recorded",
        "",
        f"Of {len(rows)} reports on public trainings {wrong or 'none'} was wrong when read by hand; {untold} could not tell.",
        "",
        *csv_next_to_page("recorded_rewards.csv"),
        "",
    ]


def provenance() -> list[tuple[str, str, str]]:
    """Say what made the table."""
    by = "`python -m benchmarks.recorded_rewards --sources FOLDER --out data/measured/recorded_rewards.json`"
    return [("recorded trainings", by, made_with(measured("recorded_rewards")))]


def main() -> None:
    asked = parser(__doc__, sources=Path("build/sources")).parse_args()
    rows = []
    for (repository, path), right in RECORDED.items():
        clone = asked.sources / repository.replace("/", "+")
        table = completions_of(clone, COMMITS[repository], path)
        rows.append(row_of(repository, path, reward_report(table, answers=answers_of(table)), right))
        print(path, rows[-1]["headline"], flush=True)
    publish({"runs": rows}, asked.out, quietly=True)


if __name__ == "__main__":
    run_main(main)
