import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from workbench import cli
from workbench.audit.check import RULES
from workbench.audit.report import audit_run
from workbench.errors import ParameterError

ROOT = Path(__file__).parents[2]


def state(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    return folder


def logged(*, masked=False, reward=lambda n: 0.2 + 0.01 * n):
    """60 steps as stock TRL logs them when all rows stop at a stop string, masked or not."""
    scatter = np.random.default_rng(0).normal(size=60)
    return [
        {"step": n + 1, "reward": reward(n) + 0.03 * scatter[n], "grad_norm": 0.0 if masked and n % 4 else 0.3}
        | {"frac_reward_zero_std": 0.1, "completions/clipped_ratio": 0.9 if masked and n % 4 == 0 else 1.0}
        | {"completions/mean_length": 7.0}
        | {"completions/max_length": 9.0 if n % 3 else 8.0, "learning_rate": 1e-4}
        for n in range(60)
    ]


def audit(capsys, *arguments):
    code = cli.main(["audit", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_a_masked_run_is_told_its_cause_first_and_its_healthy_twin_is_left_alone(capsys, tmp_path):
    sick, well = state(tmp_path / "sick", logged(masked=True)), state(tmp_path / "well", logged())
    code, out, _ = audit(capsys, sick)
    assert code == 1
    assert out.startswith(f"{sick}: masked-stops; 2 problems, 1 warning")
    assert "PROBLEM zero-gradient (masked), because of masked-stops" in out
    assert "Do not mask truncated completions" in out
    code, out, _ = audit(capsys, well)
    assert code == 0
    assert out.startswith(f"{well}: no problem, 1 warning")
    assert "WARNING false-clipping" in out


def test_json_is_an_object_a_run_with_every_rule(capsys, tmp_path):
    sick, well = state(tmp_path / "sick", logged(masked=True)), state(tmp_path / "well", logged())
    code, out, _ = audit(capsys, sick, well, "--json")
    first, second = map(json.loads, out.splitlines())
    assert code == 1
    assert [first["run"], second["run"]] == [str(sick), str(well)]
    assert [first["verdict"], second["verdict"]] == ["problem", "no problem"]
    for run in (first, second):
        assert len(run["findings"]) == len(RULES)
        fields = {"rule", "cause", "verdict", "severity", "steps", "evidence", "advice"}
        assert all(fields <= finding.keys() for finding in run["findings"])
    assert first["findings"][0]["rule"] == "masked-stops"


def test_a_path_that_cannot_be_used_ends_2_and_the_others_are_still_audited(capsys, tmp_path):
    well = state(tmp_path / "well", logged())
    code, out, err = audit(capsys, tmp_path / "absent", well)
    assert code == 2
    assert str(well) in out
    assert err.startswith("workbench: ") and "no such file or folder" in err


def test_a_path_that_the_system_refuses_is_a_line_too(capsys, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    well = state(tmp_path / "well", logged())
    for path in ("a" * 300, "~nobody-has-this-name/run", tmp_path / "loop"):
        code, out, err = audit(capsys, path, well)
        assert (code, err.count("\n")) == (2, 1)
        assert str(well) in out and err.startswith(f"workbench: {path}: ")


def test_the_page_shows_the_same_and_needs_no_network(capsys, tmp_path):
    page = tmp_path / "new" / "page.html"
    assert audit(capsys, state(tmp_path / "sick", logged(masked=True)), "--html", page)[0] == 1
    text = page.read_text()
    assert "masked-stops" in text and "Because of masked-stops" in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "http://" not in text and "https://" not in text


def test_a_limit_and_a_stop_string_decide_what_the_log_leaves_open(capsys, tmp_path):
    alike = [row | {"completions/max_length": 7.0} for row in logged()]
    folder = state(tmp_path, alike)
    assert "false-clipping: Give the limit of the run with --limit N" in audit(capsys, folder)[1]
    assert "WARNING false-clipping" in audit(capsys, folder, "--limit", 32)[1]
    assert "PROBLEM true-clipping" not in audit(capsys, folder, "--limit", 32)[1]
    code, _, err = audit(capsys, folder, "--limit", 0)
    assert (code, "limit=0" in err) == (2, True)


def test_the_value_in_python_is_a_table_of_what_was_found_and_what_is_open(tmp_path):
    report = audit_run(state(tmp_path, logged(masked=True)))
    assert report.problems == ["masked-stops", "zero-gradient"]
    assert set(report.table()["verdict"]) == {"found", "cannot tell"}
    assert "masked-stops" in str(report)
    assert "Because of masked-stops" in report.html()


def test_the_model_s_folder_tells_what_the_log_does_not(tmp_path):
    folder, model = state(tmp_path / "run", logged()), tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama", "rope_theta": 10000.0}')
    (run,) = audit_run(folder, model=model).runs
    assert {f.rule: f.verdict for f in run.findings}["padding-positions"] == "not found"
    with pytest.raises(ParameterError, match=r"no config\.json there"):
        audit_run(folder, model=tmp_path / "absent")
    with pytest.raises(ParameterError, match=r"model='who/what': no folder .* and no hub gives it"):
        audit_run(folder, model="who/what")


def test_a_limit_below_a_logged_length_is_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"limit=4: .* logs completions of 9 tokens"):
        audit_run(state(tmp_path, logged()), limit=4)


@pytest.mark.slow
def test_a_model_with_weights_is_measured_where_its_config_says_too_little(tmp_path):
    from workbench.recipes.recipes import resolve_model

    (run,) = audit_run(state(tmp_path, logged()), model=resolve_model("starter-gpt2")).runs
    (finding,) = [f for f in run.findings if f.rule == "padding-positions"]
    assert finding.verdict == "found" and finding.evidence["measured"] == "wrong without position ids"
    assert finding.evidence["measured difference, nats"] > 0.1


def test_a_setting_can_be_stated_and_one_that_is_unknown_is_refused(capsys, tmp_path):
    folder = state(tmp_path, [row | {"completions/clipped_ratio": 0.9} for row in logged()])
    assert "masked-stops" not in audit(capsys, folder)[1].split("cannot tell")[0]
    code, out, _ = audit(capsys, folder, "--set", "mask_truncated_completions=true")
    assert (code, "PROBLEM masked-stops" in out) == (1, True)
    assert "settings: mask_truncated_completions True" in out
    for wrong in ("temperature=1", "num_generations=x", "mask_truncated_completions", "max_completion_length=0"):
        code, _, err = audit(capsys, folder, "--set", wrong)
        assert (code, f"set={wrong!r}" in err) == (2, True)


def test_several_runs_are_a_table_first_and_what_is_alike_stands_once(capsys, tmp_path):
    folders = [state(tmp_path / f"sick-{n}", logged(masked=True)) for n in (1, 2)]
    _, out, _ = audit(capsys, *folders, state(tmp_path / "well", logged()))
    first, *rows = out.splitlines()[:4]
    assert first.split() == ["run", "verdict", "main", "cause"]
    assert [row.split()[1:] for row in rows[:2]] == [["problem", "masked-stops"]] * 2
    assert rows[2].split()[1:] == ["no", "problem", "false-clipping"]
    assert out.count("PROBLEM masked-stops") == 1 and f"open in {folders[0]}, {folders[1]}" in out
    assert "(docs" not in out and "more: docs/rules/masked-stops.md" in out
    assert "100% of completions" in out or "% of completions left out" in out
    assert "these rules need what is not here: mixed-groups" in " ".join(out.split())


def test_the_page_shows_the_metric_of_the_main_finding(capsys, tmp_path):
    sick, well = state(tmp_path / "sick", logged(masked=True)), state(tmp_path / "well", logged(reward=lambda n: 0.0))
    audit(capsys, sick, well, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count('aria-label="grad_norm"') == 1 and page.count("<polyline") == 2
    assert '<a href="#run-2">' in page and "docs/rules/masked-stops.md" in page


def test_the_pages_of_rules_are_those_that_the_rules_make():
    made = runpy.run_path(str(ROOT / "docs" / "rules.py"))["pages"]()
    assert set(made) == {"rules.md", *(f"rules/{rule.__name__.replace('_', '-')}.md" for rule in RULES)}
    for place, text in made.items():
        assert text == (ROOT / "docs" / place).read_text(encoding="utf-8"), "run python docs/rules.py"
    assert len(list((ROOT / "docs" / "rules").iterdir())) == len(RULES)


def test_a_page_to_share_names_no_folder_of_mine(capsys, tmp_path):
    folder, page = state(tmp_path / "s3cr3t project" / "sick", logged(masked=True)), tmp_path / "page.html"
    audit(capsys, folder, "--html", page)
    assert str(tmp_path) in page.read_text()
    audit(capsys, folder, "--html", page, "--redact")
    assert "s3cr3t" not in page.read_text() and str(tmp_path) not in page.read_text()
    assert "masked-stops" in page.read_text()
