"""The completions microscope's data: what is told of each completion, which groups are shown, what the page holds."""

import base64
import json
import re
import shutil
import zlib
from pathlib import Path

import pandas as pd
import pytest
from conftest import append_table, write_run
from report_samples import HOSTILE

from workbench.errors import RunError
from workbench.lab.reports import build_index, build_report
from workbench.lab.reports.microscope import microscope_data, write_microscope
from workbench.lab.reports.trainings import read_trainings, tokens_of, training_of
from workbench.runs.completions import save_tokens
from workbench.runs.files import write_json

RUNS = Path(__file__).parents[2] / "audit" / "runs"
STOCK = {"trainer": "ObservedGRPOTrainer", "recipe": {"num_generations": 2}}
STOCK["overrides"] = {"mask_truncated_completions": True}


def unpacked(text: str):
    return json.loads(zlib.decompress(base64.b64decode(text)))


def contents(path: Path) -> tuple[dict, list]:
    """The head of a page, and its groups."""
    head, chunks = re.findall(r'<script type="text/plain" id="\w+">([^<]*)</script>', path.read_text())
    return unpacked(head), [group for chunk in chunks.split() for group in unpacked(chunk)]


def rows(steps: int = 2, **columns) -> pd.DataFrame:
    """Two groups of two completions a step."""
    count = 4 * steps
    table = {"step": [1 + n // 4 for n in range(count)], "prompt": [f"p{n // 2}" for n in range(count)]}
    return pd.DataFrame(table | {"completion": [f"c{n}" for n in range(count)], **columns})


def signs(table: pd.DataFrame, recipe=STOCK) -> dict[str, list]:
    """Sign -> the rows that show it."""
    made = training_of(table, "", recipe)[0].table
    return {name: made.index[made[name]].tolist() for name in made if made[name].dtype == bool and made[name].any()}


# --- what is told of a completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [STOCK, STOCK | {"trainer": "GRPOTrainer", "source": "watched"}])
def test_each_sign_is_told_of_the_rows_that_show_it(recipe):
    table = rows(1, reward=[1.0, 1.0, 0.0, None], finish_reason=["stop", "length", "stop", "stop"])
    table["trl_finish_reason"] = ["length", "length", "stop", "stop"]
    table["completion_tokens"], table["sampled_tokens"] = [3, 8, 4, 5], [3, 8, 8, 5]
    assert signs(table, recipe) == {
        "flat": [0, 1], "unscored": [3], "cut": [1], "masked": [0, 1], "mistaken": [0], "wasted": [2],
    }  # fmt: skip


def test_a_trainer_that_finds_stops_masks_only_what_was_cut():
    table = rows(1, finish_reason=["stop", "length", "stop", "stop"], trl_finish_reason=["length"] * 4)
    assert signs(table, STOCK | {"trainer": "GRPOTrainer"}) == {"cut": [1], "masked": [1]}


def test_copies_empty_texts_and_two_prompts_in_a_group_are_named():
    table = rows(1).assign(completion=["x", "x", "", "y"], prompt=["p", "p", "p", "q"])
    assert signs(table) == {"same": [0, 1], "empty": [2], "mixed": [2, 3]}


def test_nothing_is_said_of_missing_finish_reasons_or_rewards():
    head, _ = microscope_data([training_of(rows())[0]])
    training = head["trainings"][0]
    assert "why completions ended" in training["lacks"]
    assert "rewards" in training["lacks"]
    assert "bins" not in training


def test_ppo_has_no_groups_and_what_stands_after_eos_is_waste():
    table = rows(1, completion_tokens=[8] * 4, tokens_to_eos=[3, 8, 8, 8], reward=[1.0] * 4)
    training, _ = training_of(table, "", {"trainer": "PPOTrainer", "recipe": {"num_generations": 2}})
    assert not training.grouped
    assert training.table["group"].unique().tolist() == [0]
    assert training.table["wasted"].tolist() == [True, False, False, False]
    assert "flat" not in training.table


def test_a_real_run_with_a_shared_seed_shows_groups_of_copies():
    """The healthy twin has 1 of 4 equal by chance: answers are short."""
    copies, healthy = (read_trainings(RUNS / name)[0][0].table for name in ("stock_request_seed", "stock_no_seed"))
    assert copies["same"].mean() == copies["flat"].mean() == 1
    assert healthy["flat"].mean() < 0.5


@pytest.mark.parametrize("odd", ["x", None, float("inf")])
def test_columns_of_odd_values_break_nothing(odd):
    table = rows(1, reward=[odd] * 4, completion_tokens=[odd] * 4, finish_reason=[odd] * 4, advantage=[odd] * 4)
    head, chunks = microscope_data([training_of(table)[0]])
    assert json.dumps(head, allow_nan=False)
    assert len(chunks) == 1


# --- stock TRL -----------------------------------------------------------------------------------------------------


def test_a_stock_folder_shows_its_rewards_and_says_what_it_lacks(tmp_path):
    folder = tmp_path / "completions"
    folder.mkdir()
    for step in (1, 2):
        table = rows(1).assign(step=step, match=[0.0, 1.0, 1.0, 1.0], words=2.0, advantage=[-0.7, 0.7, 0.0, 0.0])
        table.to_parquet(folder / f"completions_{step:05d}.parquet")
    head, groups = contents(write_microscope(tmp_path, tmp_path / "m.html", "Completions", str))
    training = head["trainings"][0]
    assert (training["steps"], training["grouped"], training["sizes"]) == ([1, 2], True, [2, 2, 2, 2])
    assert training["reward"] == [2, 3, 3, 3] * 2
    assert training["functions"] == ["match", "words"]
    assert groups[0] == {"prompts": ["p0"], "completions": ["c0", "c1"], "rewards": [[0, 2], [1, 2]]}
    assert {"why completions ended", "how many tokens were sampled", "log-probs of tokens"} <= set(training["lacks"])


# --- sampling ------------------------------------------------------------------------------------------------------


def test_of_too_many_texts_the_page_shows_every_nth_group_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.lab.reports.microscope.MOST_CHARACTERS", 1000)
    table = rows(100, reward=[0.0, 1.0] * 200).assign(completion="0123456789")
    run = write_run(tmp_path, completions=table.to_dict("records"))
    page = write_microscope(run.path, tmp_path / "m.html", "Completions", str)
    head, groups = contents(page)
    shown = head["trainings"][0]
    assert (head["every"], head["shown"], head["total"], len(groups)) == (4, 100, 400, 50)
    assert set(shown["sizes"]) == {2}
    assert shown["steps_of_groups"] == list(range(0, 100, 2))
    assert len(shown["histogram"]) == shown["steps"][-1] == 100  # the chart counts all
    assert "the texts of 100 of 400 completions are in this page, one group in 4" in page.read_text()


def test_small_runs_are_whole():
    head, chunks = microscope_data([training_of(rows(300))[0]])
    assert head["shown"] == head["total"] == 1200
    assert sum(map(len, chunks)) < 30_000


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_recorded_tokens_are_shown_with_what_became_of_them(tmp_path, starter_folder):
    shutil.copy(starter_folder / "tokenizer.json", tmp_path)
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(" a cat sat", add_special_tokens=False).ids
    count = len(ids)
    tokens = {"step": [1] * 4, "completion_ids": [ids] * 4, "sampled_ids": [[*ids, *ids]] * 4}
    tokens |= {"sampler_logprobs": [[-1.0] * count] * 4, "scorer_logprobs": [[-1.0] * (count - 1) + [-2.0]] * 4}
    save_tokens(tmp_path, 1, 1, pd.DataFrame(tokens))
    table = rows(1, finish_reason=["stop", "length"] * 2).assign(masked=[False, False, True, True])
    marked, damaged = tokens_of(tmp_path, table)
    assert damaged == []
    assert "".join(marked[0].pieces[:count]) == " a cat sat"
    assert [m.uses[count - 2 : count + 1] for m in marked] == ["ksw", "kkw", "mmw", "mmw"]
    assert marked[0].ratios == [0.0] * (count - 1) + [-1.0]
    training, _ = training_of(table, "", STOCK, lambda table: (marked, []))
    assert training.table["apart"].tolist() == [True, True, False, False]  # the scorer does not see masked ones
    assert tokens_of(tmp_path, table.assign(step=2)) == ([None] * 4, [])  # of a step without tokens


ODD = {"negative": [1, -1], "too large": [1, 2**33], "text": ["a"], "none": None}


@pytest.mark.parametrize("odd", ODD)
def test_what_cannot_be_tokens_is_left_out(tmp_path, starter_folder, odd):
    shutil.copy(starter_folder / "tokenizer.json", tmp_path)
    recorded = pd.DataFrame({"step": [1], "completion_ids": [ODD[odd]]})
    save_tokens(tmp_path, 1, 1, recorded)
    assert tokens_of(tmp_path, pd.DataFrame({"step": [1]})) == ([None], [])


def test_a_log_prob_that_is_no_number_has_no_ratio(tmp_path):
    logprobs = {"sampler_logprobs": [[-1.0, None, -1.0]], "scorer_logprobs": [[-1.5, -1.0, -3.0]]}
    recorded = pd.DataFrame({"step": [1], "completion_ids": [[1, 2, 3]]} | logprobs)
    save_tokens(tmp_path, 1, 1, recorded)
    table = pd.DataFrame({"step": [1], "prompt": ["p"], "completion": ["c"]})
    training, _ = training_of(table, find_tokens=lambda table: tokens_of(tmp_path, table))
    assert training.tokens[0].ratios == [-0.5, None, -2.0] and training.table["apart"].tolist() == [True]


# --- pages ----------------------------------------------------------------------------------------------------------


def test_the_report_links_to_the_page_wherever_it_lies(tmp_path):
    run = write_run(tmp_path / "runs", completions=rows().to_dict("records"))
    build_report(run)
    index = build_index([run], tmp_path / "out")
    for report in (run.path / "report.html", index.parent / run.notebook / "2026-1.html"):
        link = re.search(r'href="([^"]*-microscope\.html)"', report.read_text())[1]
        head, groups = contents(report.parent / link)
        assert (head["total"], groups[0]["completions"]) == (8, ["c0", "c1"])


def test_one_page_has_all_trainings_of_a_run_with_completions(tmp_path):
    run = write_run(tmp_path)
    assert "microscope" not in build_report(run).read_text()
    for name in ("stock/seed-0", "ours/seed-0"):
        (run.path / name).mkdir(parents=True)
        append_table(run.path / name, rows())
        write_json(run.path / name / "recipe.json", STOCK)
    with (run.path / "ours" / "seed-0" / "completions.jsonl").open("a") as file:
        file.write("[1]\n")
    assert "microscope" in build_report(run).read_text()
    page = run.path / f"{run.id}-microscope.html"
    assert [t["name"] for t in contents(page)[0]["trainings"]] == ["ours/seed-0", "stock/seed-0"]
    assert "completions.jsonl, line 9: [1] is no object" in page.read_text()


def test_a_recipe_file_of_a_notebook_s_own_is_not_taken_for_ours(tmp_path):
    run = write_run(tmp_path, completions=rows().to_dict("records"))
    write_json(run.path / "recipe.json", {"recipe": "x", "overrides": [], "trainer": 7, "stops": None})
    (training,), _ = read_trainings(run.path)
    assert training.grouped and training.stops == []


def test_a_record_says_that_stock_trl_was_watched(tmp_path):
    table = rows(1, finish_reason=["stop"] * 4).assign(trl_finish_reason="length")
    run = write_run(tmp_path, completions=table.to_dict("records"))
    write_json(run.path / "recipe.json", STOCK | {"trainer": "GRPOTrainer", "source": "watched"})
    (training,), _ = read_trainings(run.path)
    assert training.table["mistaken"].all()


def test_too_large_a_recording_has_a_report_but_no_page(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.lab.reports.trainings.MOST_ROWS", 7)
    run = write_run(tmp_path, completions=rows().to_dict("records"))
    with pytest.raises(RunError, match="8 completions; expected at most 7"):
        read_trainings(run.path)
    assert "microscope" not in build_report(run).read_text()


def test_text_is_only_data_in_the_page(tmp_path):
    texts = [*HOSTILE.values(), "</script>"]
    table = pd.DataFrame({"step": 1, "prompt": texts, "completion": texts, "finish_reason": texts})
    run = write_run(tmp_path, completions=table.to_dict("records"))
    page = write_microscope(run.path, tmp_path / "m.html", HOSTILE["closing tags"], str)
    source = page.read_text()
    assert "window.ran" not in source
    assert "<iframe" not in source
    head, groups = contents(page)
    assert "</script>" in head["trainings"][0]["finish_reasons"]
    shown = [text for group in groups for text in group["completions"]]
    assert shown[0] == HOSTILE["script"]
    assert shown[-1] == "</script>"
    assert max(map(len, shown)) < 101_000  # of the line of a million characters


def test_the_report_command_takes_the_output_of_stock_trl(tmp_path, capsys):
    from workbench.cli import main

    (tmp_path / "out" / "completions").mkdir(parents=True)
    assert main(["report", str(tmp_path / "out")]) == 2
    assert "log_completions=True" in capsys.readouterr().err
    rows(1).to_parquet(tmp_path / "out" / "completions" / "completions_00001.parquet")
    assert main(["report", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'microscope.html'}\n"
    assert main(["report", str(tmp_path / "out"), "--redact", "--out", str(tmp_path / "pages")]) == 0
    page = tmp_path / "pages" / "out-microscope-redacted.html"
    assert "replaced by labels" in page.read_text()


@pytest.mark.slow
def test_tokens_recorded_by_a_watch_are_those_of_its_texts(starter_folder, tmp_path):
    from workbench import length_reward, make_recipe
    from workbench.experiments.train import make_trainer
    from workbench.training.grpo import GRPOTrainer
    from workbench.watch.recorder import Watch

    recipe = make_recipe("starter", max_steps=1)
    trainer = make_trainer(GRPOTrainer, recipe, reward_funcs=length_reward(20), record_dir=tmp_path / "own")
    Watch(trainer, tmp_path / "watched", lambda *_: [], every=1)
    trainer.train()
    (training,), damaged = read_trainings(tmp_path / "watched")
    assert damaged == []
    eos = trainer.processing_class.eos_token
    for (_, row), tokens in zip(training.table.iterrows(), training.tokens, strict=True):
        kept = int(row["kept"])
        assert "".join(tokens.pieces[:kept]).removesuffix(eos) == row["completion"]
        assert tokens.uses[:kept] == "k" * (kept - 1) + ("s" if row["finish_reason"] == "stop" else "k")
        assert set(tokens.uses[kept:]) <= {"w"}
    assert any("w" in tokens.uses for tokens in training.tokens)
