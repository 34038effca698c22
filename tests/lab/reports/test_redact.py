import base64
import html
import json
import re
import string
import zlib

import nbformat.v4 as v4
import pandas as pd
import pytest
from conftest import write_run
from hypothesis import given
from hypothesis import strategies as st
from report_samples import METRICS, outputs_of, result_row, without_images
from secret_texts import COMMIT, PLANTED, SECRET, around, assigned, between, hexes, left_of, tokens, urls

from tools.redacted_notebook import redacted_notebook
from workbench.lab.reports import build_comparison, build_index, build_report
from workbench.lab.reports.page import hider
from workbench.lab.reports.redact import Redactor, users_in
from workbench.lab.reports.sweep import build_sweep_report
from workbench.runs.files import write_json
from workbench.runs.run import set_status
from workbench.runs.secrets import hide_tokens

REDACT = Redactor(hosts=("gpu17.cluster.example.org", "vm-3"), users=("zoe", "j.doe"), commits=(COMMIT,)).text
parts = st.text(string.ascii_lowercase + string.digits + "._-", min_size=3, max_size=9).map("q{}".format)
paths = st.builds(
    lambda root, names: f"{root}/{'/'.join(names)}",
    st.sampled_from(["/home", "/Users", "/scratch", "/data/x", "/root", "/mnt/nfs", "/unheard-of/top"]),
    st.lists(parts, min_size=1, max_size=4),
)


# --- secrets go ----------------------------------------------------------------------------------------------------


@given(around, paths, around)
def test_an_absolute_path_goes_whatever_stands_around_it(before, path, after):
    told = REDACT(between(before, path, after))
    assert path not in told
    assert path.rsplit("/", 1)[0] not in told


@given(around, st.sampled_from(["gpu17.cluster.example.org", "gpu17", "GPU17", "vm-3", "zoe", "Zoe", "j.doe"]), around)
def test_a_known_host_or_user_goes_as_a_whole_word(before, name, after):
    told = REDACT(between(before, name, after))
    assert not re.search(rf"(?i)(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", told)


@given(around, hexes, around)
def test_forty_hex_digits_go_unless_they_are_called_a_commit(before, digits, after):
    assert digits not in REDACT(f"{before[0]} x {digits} {after[0]}")
    assert f"commit {digits}" in REDACT(f"commit {digits} x")


secrets = st.one_of(tokens, assigned.map(lambda p: p[0]), urls.map(lambda p: p[0]), paths)


@given(st.one_of(st.text(), st.lists(secrets, max_size=6).map(" ".join)))
def test_redacting_twice_is_redacting_once(text):
    once = REDACT(text)
    assert REDACT(once) == once


@pytest.mark.parametrize(
    "text, told",
    [
        ('File "/home/zoe/lab/run.py", line 3', 'File "[path]/run.py", line 3'),
        ("/usr/lib/python3.11/site-packages/trl/trainer/grpo.py:12", "[path]/site-packages/trl/trainer/grpo.py:12"),
        ("'/data/my runs/a b/params.json'", "'[path]/params.json'"),
        ("PATH=/usr/bin:/home/zoe/bin", "PATH=[path]:[path]"),
        ("file:///home/zoe/a.html", "[path]"),
        ("-L/home/eve/lib ~eve/x", "-L[path] [path]"),
        ("http://gpu17:8000/v1 https://j.doe:pw@host.example.org/x",
         "http://[host]:8000/v1 https://[token]@host.example.org/x"),
        ("x://(http://gpu17:80 y://(/home/zoe/a http://h:8888/tree/home/eve/x",
         "x://(http://[host]:80 y://([path] http://[host]:8888/tree[path]"),
        ("x://(https://u:p4ss@github.com", "x://(https://[token]@github.com"),
        ("10.1.2.3 192.168.0.7:8000 8.8.8.8:53", "[host] [host]:8000 [host]:53"),
        ("node-12.cluster.internal zoe@example.org", "[host] [user]@[host]"),
        ("zoe_run1 on vm-3", "[user]_run1 on [host]"),
        ("Authorization: Bearer abcdefgh1234 and bearer tokens", "Authorization: [token] and bearer tokens"),
        ("https://x.org/a?sig=abc&n=1&api_key=2", "https://x.org/a?sig=[token]&n=1&api_key=[token]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----\nx", "[token]\nx"),
        ("hf_AbCdEfGh... was cut by a table", "[token]... was cut by a table"),
    ],
)  # fmt: skip
def test_the_same_thing_gets_the_same_label_and_what_helps_stays(text, told):
    assert REDACT(text) == told


def test_users_are_learnt_from_home_folders():
    assert users_in("/home/zoe/x /Users/eve/y /home/root") == {"zoe", "eve"}
    told = Redactor({"h1", ""}, users_in("/home/zoe/x"), {COMMIT, ""}).text(f"zoe h1 {COMMIT}")
    assert told == f"[user] [host] {COMMIT}"


# --- the rest stays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["Qwen/Qwen2-0.5B-Instruct on trl-lib/tldr", "reward -3.83 (95%: -4.1 to -3.5), lr 3e-4", "</search> and <eos>",
     "eos_token=</s>, pad_token: <pad>, stop_token=None, max_tokens=64", "and/or, 1/2, tokens/s, a / b /c",
     "https://huggingface.co/trl-lib/tldr/resolve/main/x.json", "torch 2.13.0+cpu, nvidia-cublas 12.8.4.1",
     "http://localhost:8000/v1 127.0.0.1:29500 0.0.0.0", "x[::2], a[1:2:3], 12:30:45, 10:20", "sk-learn-contrib, task-2024",
     f"git commit {COMMIT} with uncommitted changes", "key=lambda row: row['step']", "HF_TOKEN=$HF_TOKEN, api_key=None",
     "the secret of the bearer of bad news", "sorted(rows, key=len)", "../shared/data.csv ./run.sh runs/05/x.json",
     "completions/mean_length and frac_reward_zero_std", "@property def f(x) -> int: return x @ y", "zoepfe, azoe, vm-30"]
)  # fmt: skip
def test_ordinary_text_stays(text):
    assert REDACT(text) == text


words = st.one_of(st.integers().map(str), st.floats().map(str), st.text("abcdefgh .,", max_size=9))


@given(st.lists(words, max_size=9).map(" ".join))
def test_numbers_and_words_stay(text):
    assert REDACT(text) == text


# --- reports -------------------------------------------------------------------------------------------------------

USER, HOST, FOLDER = "zoequince", "gpu17.cluster.example.org", "/scratch/lab-q/projects"


def mark_of(name: str) -> str:
    return "".join(c for c in name.title() if c.isalpha())


def planted(name: str) -> str:
    """Text with one secret of each kind, in words of its own for the place called `name`."""
    mark = mark_of(name)
    return (
        f"hf_{mark}0123456789abcdef and https://u:pw{mark}7@github.com/x, HF_TOKEN=val{mark}9 in {FOLDER}/{mark}dir/x.py by "
        f"{USER} on {HOST} or gpu17; /home/{USER}/{mark}home, {mark.lower()}@example.org, 10.11.12.13"
    )


def secrets_of(name: str) -> list[str]:
    mark = mark_of(name)
    return [f"hf_{mark}", f"pw{mark}7", f"val{mark}9", f"{mark}dir", f"{mark}home", f"{mark.lower()}@"]


PLACES = ["param value", "param name", "env", "argv", "error", "headline", "check", "reason", "number", "claim", "measured",
          "verdict", "source", "stream", "traceback", "cell", "attribute", "caption", "title", "text plain", "markdown",
          "heading", "help", "log", "prompt", "completion", "metric"]  # fmt: skip


DRAWING = '<svg xmlns="http://www.w3.org/2000/svg">{0}<g>{0}</g><rect>{0}</rect><text>{0}</text></svg>'
CHUNKS = [b"IHDR" + bytes(13), b"tEXtComment\0" + SECRET.encode(), b"IEND"]
PICTURE = b"\x89PNG\r\n\x1a\n" + b"".join((len(c) - 4).to_bytes(4, "big") + c + bytes(4) for c in CHUNKS)


def run_with_secrets(root):
    """A run with a secret of each kind in each place, and each form of one in each kind of output."""
    p = {name: planted(name) for name in PLACES}
    table = (
        f'<table title="{p["title"]}"><tr><td>{p["cell"]}</td></tr></table>'
        f'<figure><figcaption>{p["caption"]}</figcaption></figure><abbr title="{p["attribute"]}">x</abbr>'
    )
    shown = [{"text/html": table}, {"text/plain": p["text plain"]}, {"image/png": base64.b64encode(PICTURE).decode()}]
    shown += [{"text/html": f"<p>{html.escape(text)}</p>"} for text in PLANTED]
    shown += [{"image/svg+xml": DRAWING.format(html.escape(text))} for text in PLANTED if "\x1b" not in text]
    folded = v4.new_output(
        "stream", name="stdout", text="x\n" * 20 + f"HF_TOKEN={SECRET}"
    )  # its last line is the fold's
    outputs = [folded, *outputs_of(["harmless", p["stream"]])] + [v4.new_output("display_data", data) for data in shown]
    for text in (p["traceback"], *PLANTED):
        outputs += [v4.new_output("error", ename="E", evalue=text, traceback=text.split("\n"))]
        outputs += [v4.new_output("stream", name="stdout", text=text + "\n\n")]
    results = [result_row(p["check"], True), result_row("b", None, f"not run: {p['reason']}")]
    results += [result_row(p["measured"], None, p["verdict"], p["claim"])]
    result = {"headline": {"name": p["headline"], "value": 1.5}, "results": results}
    result |= {"numbers": {p["number"]: 1.0, p["headline"]: 1.5}}
    rows = [{"step": 1, "prompt": p["prompt"], "completion": p["completion"], "finish_reason": "stop", "reward": -1.0}]
    rows += [{"step": 1, "prompt": t, "completion": t, "finish_reason": t, "reward": 1.0} for t in PLANTED]
    params = {"seed": 1, p["param name"]: 1, "folder": p["param value"], **{f"p{n}": t for n, t in enumerate(PLANTED)}}
    metrics = [m | {"note": p["metric"]} for m in METRICS]
    files = {"params": params, "result": result, "completions": rows, "metrics": metrics}
    run = write_run(root, f"2026-{USER}", state="failed", **files)
    env = {"host": HOST, "git_commit": COMMIT, "note": p["env"], "argv": ["x", "--token", "valArgv9", p["argv"]]}
    write_json(run.path / "env.json", env)
    cells = [
        v4.new_markdown_cell(f"# Title {p['heading']}\n## Question\n{p['markdown']}"),
        v4.new_code_cell(f"seed: int = 0  # {p['help']}; 0..9", metadata={"tags": ["parameters"]}),
        v4.new_code_cell(f"x = 1  # {p['source']}", outputs=outputs, execution_count=1),
    ]
    (run.path / "executed.ipynb").write_text(json.dumps(v4.new_notebook(cells=cells)))
    (run.path / "log.txt").write_text("\n\n".join([p["log"], *PLANTED]))
    set_status(run.path, "failed", "\n\n".join([p["error"], *PLANTED]))
    return run


SECRETS = ["valArgv9", *(secret for name in PLACES for secret in secrets_of(name)[:3])]
PRIVATE = [USER, HOST, "gpu17", "lab-q", "10.11.12.13", *(s for name in PLACES for s in secrets_of(name)[3:])]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_with_secrets(tmp_path_factory.mktemp("secret") / "runs")


def found(page: str, redacted: bool = True) -> list[str]:
    """The secrets that a page, its packed parts and its pictures show; of a redacted one also what is private."""
    packed = [zlib.decompress(base64.b64decode(p)).decode() for p in re.findall(r">\s*(eJ[\w+/=]{20,})", page)]
    pictures = [base64.b64decode(p).decode("latin-1") for p in re.findall(r"base64,([\w+/=]+)", page)]
    shown = "".join([html.unescape(page), *packed, *pictures])
    text = without_images(page).lower()
    named = [secret for secret in SECRETS + PRIVATE * redacted if secret.lower() in text]
    return named + left_of(re.sub(r"<[^<>]*>", "", shown)) + left_of(shown)


def test_all_places_are_shown_in_a_report_that_is_not_redacted(run):
    """Else the tests below would look where nothing was."""
    page = build_report(run).read_text()
    assert [name for name in PLACES if f"{mark_of(name)}dir" not in page] == []
    assert HOST in page and found(page, redacted=False) == []


def test_a_redacted_report_has_labels_and_the_same_figures(run):
    path = build_report(run, redact=True)
    plain, page = build_report(run).read_text(), path.read_text()
    assert path.name == "report-redacted.html" and found(page) == []
    for text in ("[token]", "[host]", "[user]", "[path]/x.py", COMMIT, "were replaced by labels in this copy",
                 "checks: 1 passed, 1 skipped"):  # fmt: skip
        assert text in page
    images = [re.findall(r'src="(data:[^"]*)"', page) for page in (plain, page)]
    assert images[0] == images[1] and len(images[0]) >= 3


@pytest.mark.parametrize("redact", [True, False])
def test_no_secret_survives_in_any_page_or_its_name(run, redact, tmp_path):
    before = build_report(run).read_bytes()
    unreadable = write_run(tmp_path / f"HF_TOKEN={SECRET}", "2026-1", result={})
    (unreadable.path / "result.json").write_text("[1")
    index = build_index([run, unreadable], tmp_path / "out", redact=redact).read_text()
    assert "not JSON" in index
    build_sweep_report("nb", {f"HF_TOKEN={SECRET}": "1"}, [], tmp_path / "out", redact=redact)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    pages = {path.relative_to(tmp_path / "out").as_posix(): path.read_text() for path in files}
    assert len(pages) >= 4 and not [name for name in pages if SECRET in name]
    assert [name for name, page in pages.items() if found(page, redact)] == []
    names = {f"05_grpo_docs_example/2026-[user]{end}.html" for end in ("-microscope", "")}
    assert (names <= set(pages)) == redact
    assert (run.path / "report.html").read_bytes() == before


def test_two_runs_whose_names_become_equal_keep_a_page_each(tmp_path):
    runs = [write_run(tmp_path / "runs", name, params={"seed": n, "x": "/home/zoe/a /home/eve/b"}) for n, name in
            enumerate(("2026-zoe", "2026-eve"))]  # fmt: skip
    build_index(runs, tmp_path / "out", redact=True)
    assert len(list((tmp_path / "out").rglob("2026-*.html"))) == 2


def test_a_redacted_comparison_has_no_secret_either(run, tmp_path):
    html = pd.DataFrame({planted("cell"): [planted("caption")]}).to_html()
    path = build_comparison(
        [run], tmp_path / "out" / "c.html", title=planted("title"), outcome=planted("headline"),
        sections={planted("heading"): html}, command=planted("source"), limits=[planted("reason")], redact=True,
    )  # fmt: skip
    assert found(path.read_text()) == []


def test_a_copy_hides_what_several_elements_say():
    svg = "<svg xmlns='http://www.w3.org/2000/svg'><text>api_key<tspan>=s3cr3tz9</tspan></text></svg>"
    html = {"text/html": "<b>api_key</b>=<i>s3cr3tz9</i>", "text/plain": ["api_key=", "s3cr3tz9"]}
    drawing = {"image/svg+xml": svg, "application/json": {"api_key": "s3cr3tz9"}}
    outputs = [v4.new_output("display_data", data) for data in (html, drawing, {"image/svg+xml": "<svg>"})]
    outputs += [
        v4.new_output("error", ename="E", evalue="api_key=s3cr3tz9", traceback=["api_key=", "\x1b[31ms3cr3tz9"])
    ]
    outputs += [v4.new_output("stream", name="stdout", text=text) for text in ("api_key=\x1b[31ms3cr", "3tz9")]
    cell = v4.new_code_cell("api_key = 's3cr3tz9'", outputs=outputs, metadata={"note": "api_key=s3cr3tz9"})
    notebook = v4.new_notebook(cells=[cell], metadata={"papermill": {"parameters": {"api_key": "s3cr3tz9"}}})
    copy = json.dumps(redacted_notebook(json.loads(json.dumps(notebook)), hide_tokens))
    assert "tz9" not in copy
    assert copy.count("[token]") >= 9
    assert "left out: it is" in copy


def test_a_run_s_folder_with_blanks_in_it_goes_whole(tmp_path):
    run = write_run(tmp_path / "Acme Merger 2026" / "runs")
    assert "Merger" not in hider([run], redact=True)(f"saved to {run.path}/metrics.jsonl and closed")


def test_a_copy_hides_each_host_and_each_folder_with_blanks(tmp_path):
    """A run that was resumed elsewhere, of a notebook and a data set in folders with blanks in their names."""
    run, folder = write_run(tmp_path / "runs", state="failed"), tmp_path / "Acme Merger"
    folder.mkdir()
    data = folder / "old prompts.jsonl"
    data.touch()
    write_json(run.path / "params.json", {"dataset": str(data)})
    about = {"path": f"{folder}/b.ipynb", "code": "c", "cwd": str(folder)}
    rows = [{"notebook": about, "environment": {"host": host}} for host in ("nodea3", "nodeb7")]
    (run.path / "executions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = build_report(run, redact=True).read_text()
    assert "executed 2 times, with the same code, on [host]" in page and not re.search("nodea3|nodeb7", page)
    assert "Merger" not in page and "[path]/b.ipynb" in page
    write_json(run.path / "env.json", {"argv": 5, "host": "nodec1"})
    assert hider([run], redact=True)(f"nodec1 {folder}") == "[host] [path]"
