"""What a stranger may give to `workbench audit`: each unusable input is one clear line and exit code 2."""

import json
import pickle

import pandas as pd
import pytest

from workbench import cli
from workbench.audit.report import audit_run

HOSTILE = "\x1b]0;owned\x07\x1b[31m<script>alert(1)</script><img src=x onerror=alert(2)>"
LINE = {"reward": 0.5, "completions/mean_length": 7.0, "frac_reward_zero_std": 0.1}


def history(*rows) -> bytes:
    return json.dumps({"log_history": list(rows)}).encode()


def half_a_parquet() -> bytes:
    whole = pd.DataFrame({"step": range(99), "prompt": "p", "completion": "c"}).to_parquet()
    return whole[: len(whole) // 2]


UNUSABLE = {
    "an empty folder": (None, "no log in this folder"),
    "a parquet cut in half": (("completions_00001.parquet", half_a_parquet()), "completions only"),
    "a classifier's training": (
        ("trainer_state.json", history({"step": 1, "loss": 0.5, "eval_accuracy": 0.9})),
        "no reward",
    ),
    "NaN alone": (("trainer_state.json", b'{"log_history": [{"step": NaN, "reward": NaN}]}'), "no step with a number"),
    "lines of 1 MB": (("console.txt", (b"{'" * 600_000 + b"\n") * 4), "no line like"),
    "a CSV of names alone": (("history.csv", b"step,reward,loss\n"), "no line below the first"),
    "a number of 400 digits": (("log.jsonl", b'{"step": 1, "reward": %s}\n' % (b"9" * 400)), "cannot be read as a log"),
    "a pickle dressed as JSON": (("state.json", pickle.dumps({"log_history": [LINE]})), "pickle"),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_what_cannot_be_used_is_one_clear_line_and_exit_code_2(tmp_path, capsys, what):
    file, says = UNUSABLE[what]
    path = tmp_path
    if file:
        path = tmp_path / file[0]
        path.write_bytes(file[1])
    assert cli.main(["audit", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("workbench: ") and err.count("\n") == 1
    assert says in err and str(tmp_path) in err


def test_some_numbers_that_are_not_finite_are_a_finding(tmp_path, capsys):
    rows = [{"step": n, **LINE, "loss": float("nan") if n > 30 else 0.1} for n in range(1, 41)]
    (tmp_path / "trainer_state.json").write_bytes(history(*rows))
    assert cli.main(["audit", str(tmp_path)]) == 1
    assert "log-damage (not-finite)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recipe.json", {"reward_funcs": 5, "stops": {"stop": [1], "stop_token_ids": 7}}),
        ("recipe.json", {"reward_funcs": [{"highest": 1}], "overrides": {"reward_weights": 3}}),
        ("recipe.json", {"recipe": {"num_generations": "4", "max_completion_length": [9]}}),
        ("config.json", {"model_type": ["gpt2"], "eos_token_id": {}, "dtype": 3}),
    ],
)
def test_settings_of_another_type_are_left_out(tmp_path, name, value):
    (tmp_path / "trainer_state.json").write_bytes(history(*({"step": n, **LINE} for n in range(1, 21))))
    (tmp_path / name).write_text(json.dumps(value))
    (tmp_path / "completions").mkdir()
    table = {"step": [1, 1], "prompt": "p", "completion": ["a", "b"], "match": [0.0, 1.0]}
    pd.DataFrame(table).to_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert cli.main(["audit", str(tmp_path)]) == 0


def test_escapes_and_scripts_in_completions_are_inert_everywhere(tmp_path, capsys):
    (tmp_path / "trainer_state.json").write_bytes(history(*({"step": n, **LINE, HOSTILE: 1} for n in range(1, 21))))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": HOSTILE, "dtype": HOSTILE}))
    (tmp_path / "completions").mkdir()
    steps = [n for n in range(1, 21) for _ in range(4)]
    table = {"step": steps, "prompt": HOSTILE, "completion": HOSTILE, HOSTILE: 1.0}
    pd.DataFrame(table).to_parquet(tmp_path / "completions" / "completions_00020.parquet")
    assert cli.main(["audit", str(tmp_path)]) == 1  # copies: every completion is the same
    assert cli.main(["audit", str(tmp_path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert "script" in out, "the model type is named"
    for text in (out, err):
        assert "\x1b" not in text and "\x07" not in text
    assert "<script>" not in audit_run(tmp_path)._repr_html_()
