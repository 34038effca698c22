import html
import json
import re
import shlex

from conftest import write_run

from workbench.lab.batch.plan import Entry, parse_grid
from workbench.lab.reports import sweep
from workbench.lab.reports.sweep import build_sweep_report
from workbench.runs.parameters import parse_assignments, parse_parameters
from workbench.runs.run import record_execution

FULL = {"seed": 0, "learning_rate": 1e-4, "model": "starter", "title": "a"}


def entry(root, seed: int, rate: float, state="done") -> Entry:
    metrics = [{"step": n, "elapsed_s": n, "reward": -10 / n - seed} for n in range(1, 91)]
    params = FULL | {"seed": seed, "learning_rate": rate}
    run = write_run(root, f"{seed}-{rate}", notebook="grid", params=params, metrics=metrics, state=state)
    return Entry({"seed": seed, "learning_rate": rate}, params, "run", run)


def test_the_report_groups_what_differs_only_in_the_seed(tmp_path):
    entries = [entry(tmp_path / "runs", seed, rate) for seed in range(3) for rate in (1e-4, 3e-4)]
    path = build_sweep_report("grid", {"seed": "0..2", "learning_rate": "1e-4,3e-4"}, entries, tmp_path / "reports")
    page = path.read_text(encoding="utf-8")
    assert path.name == "grid-seed=0..2_learning_rate=1e-4,3e-4.html"
    assert "6 runs: 6 done" in page
    assert "learning_rate=0.0001 (3 seeds)" in page
    assert "95% t interval" in page
    assert page.count('href="grid/') == 6
    assert (tmp_path / "reports" / "grid" / "0-0.0001.html").is_file()
    assert page.count("<script") == 1  # sorts and filters the table of runs


def test_a_model_s_folder_is_shown_by_its_name(tmp_path):
    one = entry(tmp_path / "runs", 0, 1e-4)
    model = str(tmp_path / "toys" / "starter-qwen2")
    (one.run.path / "recipe.json").write_text(json.dumps({"recipe": {"model": model, "max_steps": 3}}))
    one.varied["model"] = model
    page = build_sweep_report("grid", {"seed": "0"}, [one], tmp_path / "reports").read_text()
    assert (
        "<td>learning_rate=0.0001, model=starter-qwen2, starter-qwen2, 3 steps</td>" in page
        and str(tmp_path / "toys") not in page
    )


def test_runs_not_done_or_without_a_log_are_named_and_left_out(tmp_path):
    silent = write_run(tmp_path / "runs", "silent", notebook="grid", params=FULL)
    entries = [entry(tmp_path / "runs", 0, 1e-4), entry(tmp_path / "runs", 1, 1e-4, state="failed")]
    entries += [Entry({"seed": 2}, FULL, "run", silent), Entry({"seed": 3}, FULL, "run")]
    page = build_sweep_report("grid", {"seed": "0..3"}, entries, tmp_path / "reports").read_text()
    assert "4 runs: 2 done, 1 failed, 1 not started" in page
    for line in ("grid/1-0.0001: failed", "grid/silent: no metrics", "seed=3: not started"):
        assert line in page


def test_the_command_gives_a_value_with_commas_as_one(tmp_path):
    fixed = {"stop": 'a",b', "layers": [1, 2], "model": "starter"}
    page = build_sweep_report("grid", {"seed": "0"}, [entry(tmp_path / "runs", 0, 1e-4)], tmp_path, fixed=fixed)
    (command,) = re.findall(r"<pre><code>(workbench sweep .*)</code></pre>", page.read_text())
    known = parse_parameters("stop: str = ''\nlayers = [0]\nmodel: str = ''\nseed: int = 0")
    words = shlex.split(html.unescape(command))
    grid = parse_grid(known, parse_assignments([word for word in words if "=" in word]))
    assert grid == {name: [value] for name, value in fixed.items()} | {"seed": [0]}


def test_runs_of_different_code_are_named_by_the_page(tmp_path):
    entries = [entry(tmp_path / "runs", seed, 1e-4) for seed in range(3)]
    for one, codes in zip(entries, (["old"], ["old", "new"], ["old"]), strict=True):
        for code in codes:
            record_execution(one.run, {"code": code})
    page = build_sweep_report("grid", {"seed": "0..2"}, entries, tmp_path / "reports").read_text()
    assert "Resumed with other code than they began with: 1-0.0001." in page
    assert "runs of grid were executed with different code" in page
    assert "0-0.0001, 2-0.0001 with old; 1-0.0001 with new" in page
    page = build_sweep_report("grid", {"seed": "0,2"}, entries[::2], tmp_path / "reports").read_text()
    assert "Resumed with other code" not in page and "different code" not in page


def test_each_sweep_has_its_own_file_a_long_grid_a_short_name(tmp_path):
    grids = [f"{'x' * 200}0", f"{'x' * 200}1", "<s>", "</s>", "/s"]
    names = {build_sweep_report("grid", {"title": grid}, [], tmp_path).name for grid in grids}
    assert len(names) == len(grids)
    assert all(len(name) < 120 for name in names)
    of_files = [build_sweep_report("grid", {"seed": "1,2"}, [], tmp_path, fixed={"lr": lr}) for lr in (0.5, 0.7)]
    assert of_files[0] != of_files[1] and all(
        re.fullmatch(r"grid-seed=1,2-\w{8}\.html", page.name) for page in of_files
    )
    assert "Sweep of grid: seed=1,2 (lr=0.7)" in of_files[1].read_text()


def test_a_redacted_sweep_shows_no_secret_and_formulas_are_text(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "alicexyz")
    entries = []
    for n, title in enumerate(("/home/alicexyz/m1", "/home/alicexyz/m2", r"$\boxed{$")):
        one = entry(tmp_path / "runs", n, 1e-4)
        entries.append(Entry({"title": title}, one.params | {"title": title}, "run", one.run))
    drawn = []
    plain = sweep.show_curves
    monkeypatch.setattr(
        sweep, "show_curves", lambda groups, **about: drawn.append(list(groups)) or plain(groups, **about)
    )
    path = build_sweep_report("alicexyz_exp.ipynb", {"title": "a"}, entries, tmp_path / "out", redact=True)
    assert "alicexyz" not in path.name + path.read_text() and not any("alicexyz" in name for name in drawn[0])
    assert [name.split(",")[0] for name in drawn[0]] == ["title=[path] (1)", "title=[path] (2)", r"title=$\boxed{$"]


def test_what_cannot_be_used_is_a_line_of_the_page(tmp_path, monkeypatch):
    """A documented run with a hole, and files of a notebook's own form that are called as ours."""
    baselines = tmp_path / "baselines"
    baselines.mkdir()
    (baselines / "mine.json").write_text('{"name": "mine", "curves": 5}')
    monkeypatch.setenv("WORKBENCH_BASELINES", str(baselines))
    entries = [entry(tmp_path / "runs", n, 1e-4) for n in range(6)]
    odd = [{"recipe": "x"}, {"recipe": 5}, {"recipe": {}, "overrides": 3}, {"recipe": {"learning_rate": "fast"}}]
    for one, record in zip(entries, map(json.dumps, [*odd, {"reward_funcs": ["a"], "recipe": {}}]), strict=False):
        (one.run.path / "recipe.json").write_text(record)
    page = build_sweep_report("grid", {"seed": "0..5"}, entries, tmp_path / "out").read_text()
    assert "documented run mine: " in page and "6 runs: 6 done" in page
    assert page.count("AttributeError") + page.count("TypeError") + page.count("ValueError") >= 3


def test_a_documented_run_of_the_same_unit_has_a_verdict(tmp_path):
    entries = [entry(tmp_path / "runs", seed, 1e-4) for seed in range(2)]
    page = build_sweep_report("grid", {"seed": "0..1"}, entries, tmp_path / "reports").read_text()
    assert "Documented runs in the same unit" not in page
    assert "95% t interval" in page and "bootstrap" not in page  # of 2 seeds
    length = {"name": "reward_len", "arguments": {"target": 200, "sign": -1}, "lowest": None, "highest": 0.0}
    length["unit"] = "characters from the target of 200"
    for one in entries:
        record = {"recipe": {"seed": one.varied["seed"]}, "reward_funcs": [length]}
        (one.run.path / "recipe.json").write_text(json.dumps(record))
    page = build_sweep_report("grid", {"seed": "0..1"}, entries, tmp_path / "reports").read_text()
    assert "Tolerance: a tenth of the range of the documented curve" in page and "inconclusive" in page
