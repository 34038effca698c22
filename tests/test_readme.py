"""What README, docs and notebooks tell a reader to click or to copy: links lead somewhere, code runs as it stands."""

import contextlib
import copy
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import NOTEBOOKS, ROOT, call
from trl_version import HAS_PPO

from benchmarks import dose, pads_in_the_loss
from tools.api import listed
from workbench.audit.check import RULES
from workbench.audit.report import audit_run
from workbench.curves import load_baseline
from workbench.errors import ParameterError
from workbench.experiments.instruments.custom_stops import held_out_gain, recorded, useful_steps

README = ROOT / "README.md"
BUILT = {ROOT / "docs" / "reference" / f"{name}.md" for name in ("api", "rules")}
SYMPTOMS = ROOT / "docs" / "how-to" / "symptoms.md"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "AGENTS.md", "data/README.md")]
PAGES += [*sorted(set((ROOT / "docs").rglob("*.md")) - BUILT), *NOTEBOOKS]
TINY = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "save_strategy": "no"}
TINY |= {"per_device_train_batch_size": 4, "num_generations": 2}


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)


def prose(path) -> str:
    """Return the text of a page, or of a notebook's markdown cells, without blocks of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def rows_of(path) -> list[list[str]]:
    """Return the cells of each line of the first table with a column `you see`."""
    table = path.read_text(encoding="utf-8").partition("| you see |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def names_of(stub) -> set[str]:
    """Return the headings of a stub on the site's page of names."""
    return {name.lower() for name in listed(stub)} | {f"workbench{stub.parent.name}"}


def advice(path) -> str:
    """The code that a notebook ends with, for one's own code; empty where it has none."""
    sources = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    (found,) = [blocks(text.partition("## Use it")[2]) for text in sources if "## Use it" in text] or [[""]]
    return found[0]


def test_the_audit_says_what_the_readme_shows_of_it(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = README.read_text().partition("    $ workbench audit ")[2].partition("\n\n")[0]
    command, *lines = [line.partition(" #")[0].strip() for line in shown.splitlines()]
    _, out, _ = call(capsys, "audit", command)
    places = [out.index(line) for line in lines]
    assert len(lines) >= 5 and places == sorted(places)


def test_readme_symptoms_are_the_first_of_the_table():
    shown = rows_of(README)
    assert len(shown) == 4
    assert shown == [row[:3] for row in rows_of(SYMPTOMS)[:4]]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http", "attachment:")):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists() and there.resolve().is_relative_to(ROOT), f"{page.name}: {target}"
        if there.suffix in (".py", ".pyi"):  # the site has a page of the rules, and one of the names
            known = {rule.name for rule in RULES} if there.suffix == ".py" else names_of(there)
            assert not anchor or anchor in known, f"{page.name}: {target}"
        elif anchor:
            text = prose(there)
            plain = [re.sub(r"[^\w -]", "", h.lower()).strip() for h in re.findall(r"^#+ (.*)$", text, re.M)]
            slugs = [heading.replace(" ", "-") for heading in plain]
            assert anchor in slugs or f'id="{anchor}"' in text, f"{page.name}: {target}"


def shown_by_jupyterlab(page) -> set[str]:
    """What a link can name in JupyterLab: the words of a heading as they are written, and the id of an `<a id=...>`."""
    text = prose(page)
    headings = [re.sub(r"`|\[|\]\([^)]*\)", "", line).strip() for line in re.findall(r"^#+ (.*)$", text, re.M)]
    return {heading.replace(" ", "-") for heading in headings} | set(re.findall(r'<a id="([^"]+)"></a>', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_jupyterlab_opens_a_link_at_its_section(page):
    """It keeps the capitals of headings, where other viewers write the names of sections in small letters."""
    links = re.findall(r"\]\(([^)\s:]*\.md)?#([\w-]+)\)", prose(page))
    sections = [(page.parent / file if file else page, name) for file, name in links]
    missing = [f'{path.name}: <a id="{name}"></a>' for path, name in sections if name not in shown_by_jupyterlab(path)]
    assert missing == []


def test_the_releases_of_the_table_are_those_that_were_seen():
    seen = json.loads((ROOT / "data" / "defects.json").read_text())["results"]
    release = lambda name: tuple(map(int, name.split(".")))  # noqa: E731
    present = {name: [r for r in cells if cells[r]["state"] == "present"] for name, cells in seen.items()}
    rows = {
        "a stop string counts as truncated": "false_clipping",
        "`seed` in `generation_kwargs`": "copied_request_seed",
    }
    rows |= {"learned positions (GPT-2)": "padding_without_positions", "by default PPO": "ppo_runs_past_eos"}
    rows |= {'`scale_rewards="batch"`': "zero_std_share"}
    for words, name in rows.items():
        (line,) = [line for line in map(" ".join, rows_of(SYMPTOMS)) if words in line]
        assert f"up to TRL {max(present[name], key=release).rpartition('.')[0]}" in line, name


@pytest.mark.slow
def test_readme_script_runs_as_it_stands_without_a_hub(tmp_path, monkeypatch, capsys):
    (code,) = blocks(README.read_text())
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    out = capsys.readouterr().out
    # Where all completions sampled on this processor are equally long, nothing lies behind an end.
    assert re.search(r"^first: ends|^no stage differs", out), out
    for line in re.findall(r"^    (\w+ +different) ", README.read_text(), re.M):
        assert line in out or out.startswith("no stage differs")


def test_the_readme_names_two_lines_that_fix_its_script():
    fixed = pads_in_the_loss.fixed(pads_in_the_loss.script())
    assert 'stops=["</search>"]' in fixed and "from workbench import GRPOTrainer" in fixed
    assert "generation_kwargs" not in fixed


def test_the_figure_counts_pads_that_the_loss_takes():
    slopes = np.array([1.0, -1.0, 2.0, 0.0])
    row = SimpleNamespace(mask=[1, 1, 1, 0], completion_ids=[5, 0, 0, 0], slopes=slopes)
    counted = pads_in_the_loss.tokens(SimpleNamespace(rows=[row]), pad=0)
    assert counted == {"rows": [{"own": 1, "pads": 2}], "pads' share of the slopes": 0.75}
    result = {arm: counted | {"headline": "first: ends, rows 0"} for arm in ("stock", "workbench")}
    assert "1 tokens of the completions and 2 behind their ends; first: ends" in pads_in_the_loss.figure(result).alt


@pytest.fixture
def mine(tmp_path, starter_folder):
    """What a user's script has by the time that a notebook's lines are copied into it, by the notebook's number."""
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workbench import length_reward, load_prompts, make_recipe, resolve_model

    tokenizer = AutoTokenizer.from_pretrained(starter_folder, padding_side="left")
    dataset = load_prompts("starter").select(range(8))
    args = trl.GRPOConfig(
        str(tmp_path / "out"), max_steps=1, logging_steps=1, report_to="none", max_completion_length=8, **TINY
    )
    common = {"reward_func": length_reward(20), "args": args, "dataset": dataset, "model": str(starter_folder)}

    def of(number: str) -> dict:
        if number == "01":
            from workbench.experiments.train import ppo_config, random_heads

            recipe = make_recipe("starter", max_steps=1, num_generations=2, per_device_train_batch_size=4)
            model, names = AutoModelForCausalLM.from_pretrained(starter_folder), dataset.column_names
            value_model, reward_model = random_heads(starter_folder, 0)
            tokenized = dataset.map(lambda row: tokenizer(row["prompt"]), remove_columns=names)
            heads = {"reward_model": reward_model, "value_model": value_model, "ref_model": copy.deepcopy(model)}
            own = {"args": ppo_config(recipe, tmp_path / "ppo"), "tokenizer": tokenizer, "dataset": tokenized,
                   "model": model}  # fmt: skip
            return own | heads
        if number == "03":
            model = AutoModelForCausalLM.from_pretrained(resolve_model("starter-gpt2"))
            return {"model": model, "tokenizer": tokenizer}
        if number == "08":
            ids = [tokenizer(text)["input_ids"] for text in dataset["prompt"][:2]]
            columns = {"prompt_ids": ids, "completion_ids": [[5, 6]] * 2, "sampled_logprobs": [[-3.0, -4.0]] * 2}
            return columns | {"model": AutoModelForCausalLM.from_pretrained(starter_folder)}
        if number == "06":
            (tmp_path / "outputs/checkpoint-250").mkdir(parents=True)  # where TRL leaves its log
            log = [{"step": n, "reward": n / 100, "completion_length": 200.0} for n in range(1, 251)]
            (tmp_path / "outputs/checkpoint-250/trainer_state.json").write_text(json.dumps({"log_history": log}))
            return {}
        return common

    return of


@pytest.mark.slow
def test_the_code_that_notebooks_end_with_runs(mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = {path.stem[:2]: code for path in NOTEBOOKS if (code := advice(path))}
    assert {path.stem[:2] for path in NOTEBOOKS} - {"00"} <= set(shown)
    for number, code in shown.items():
        if number in ("00", "07", "09", *([] if HAS_PPO else ["01"])):
            continue  # these look at a trainer or read a folder, which has tests of its own; this TRL has no PPO
        refused = pytest.raises(ParameterError, match="need vLLM") if number == "04" else contextlib.nullcontext()
        with refused:  # 04's advice is for vLLM, which these arguments do not ask for
            exec(compile(code, f"notebook {number}", "exec"), mine(number))


def test_readme_says_what_masking_costs_at_a_third_of_eos():
    result = json.loads((ROOT / "data/measured/dose.json").read_text())
    rows = dose.trained(result)
    rows = rows[(rows["examples"] == 1) & (rows["untagged"] == 0)]
    used, could = rows[rows["way"] == "masked"][["of these with a gradient", "steps whose rewards differ"]].sum()
    numbers = re.findall(r"[-+]\d\.\d+", dose.masked_less_unmasked(rows))
    points = [round(100 * float(number)) for number in numbers]
    assert [rows["seed"].nunique(), 0.3 < rows["dose"].iloc[0] < 0.36] == [5, True]
    readme = " ".join(README.read_text().split())
    assert f"{rows['EOS, all steps'].mean():.0%} do (a third at first)" in readme
    assert f"masked stock TRL has a gradient in {used} of {could} such steps" in readme
    assert "over five seeds masking is {} points higher ({} to {}: its cost is open)".format(*points) in readme


def test_lead_figure_says_what_was_recorded():
    readme = " ".join(README.read_text().split())
    names = ("stock-trl-masked", "stock-trl-unmasked", "workbench-masked")
    arms = {name: load_baseline(f"workbench-smollm2-stops-sums-{name}") for name in names}
    seeds = {name: recorded(one) for name, one in arms.items()}
    counts = {name: tuple(map(sum, zip(*map(useful_steps, arm), strict=True))) for name, arm in seeds.items()}
    used, could = counts[names[0]]
    steps = sum(len(seed["grad_norm"].dropna()) for seed in seeds[names[0]])
    assert (
        f"Of {steps} steps of stock TRL with masking, all seeds together, {could} have a prompt whose completions differ"
        in readme
    )
    assert f"{used} of these {could} have a gradient" in readme
    plain, own = ("{} of {}".format(*counts[name]) for name in names[1:])
    assert f"Without masking {plain} have one, in the workbench, which masks only what was truncated, {own}." in readme
    assert all(used == could for used, could in list(counts.values())[1:])
    assert (
        "; ".join(f"{one.recorded['arm']}, {{}} of {{}}".format(*counts[name]) for name, one in arms.items()) in readme
    )
    right = {name: sorted(seed["right"].dropna().iloc[-1] for seed in arm) for name, arm in seeds.items()}
    masked, unmasked, ours = (f"{ends[0]:.0%} to {ends[-1]:.0%}" for ends in right.values())
    (untrained,) = {f"{seed['right'].dropna().iloc[0]:.0%}" for arm in seeds.values() for seed in arm}
    asked = {len(answers) for one in arms.values() for answers in one.recorded["answers"].values()}
    assert (
        f"Of {max(asked)} questions that are not trained, {untrained} are answered right" in readme and len(asked) == 1
    )
    assert f"{masked} by stock TRL with masking, {unmasked} without (orange), {ours} by the workbench" in readme
    gain, less = (held_out_gain(arms[a], arms[b]) for a, b in ((names[1], names[0]), (names[1], names[2])))
    points = [[round(100 * value) for value in (one.estimate, one.low, one.high)] for one in (gain, less)]
    assert "is {} points higher without masking than with it (95% interval: {} to {})".format(*points[0]) in readme
    assert " {} points above the workbench, whose `clipped_ratio` is right ({} to {}: open".format(*points[1]) in readme
    assert gain.above(0)[0] and "5 seeds" in gain.about and "five a colour" in readme
    assert [len(arm) for arm in seeds.values()] == [5, 5, 5]
    assert "masked-stops" in audit_run(ROOT / "data/audit/masked_stops_gemma.jsonl").problems
