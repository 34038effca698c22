import errno
import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nbformat.v4 as v4
import pytest
from conftest import ROOT, call, until, workbench, write_notebook, write_run
from widget_samples import with_problem

from workbench.errors import ParameterError, RunError
from workbench.lab.batch.code import code_of
from workbench.lab.batch.plan import claim, parse_grid, plan_run, plan_sweep
from workbench.runs import lock
from workbench.runs.files import write_json
from workbench.runs.parameters import notebook_parameters, parse_parameters
from workbench.runs.run import Run, list_runs, record_execution, set_status

PARAMETERS = """\
seed: int = 0  # of everything; 0..1000
out_dir: str = ""  # run folder
interactive: bool = True  # widgets or static twins
learning_rate: float = 1e-4  # of the optimizer; 0..1
model: str = "starter"  # what; one of starter, other
title: str = "a"  # any text"""
SETUP = (
    "import json, time\nfrom pathlib import Path\nfrom workbench import Result, open_run, save_result\n"
    'run = open_run("grid", out_dir, {"seed": seed})'
)
TRAIN = (
    'lines = [{"step": n, "elapsed_s": n, "reward": -10 / n - seed} for n in range(1, 31)]\n'
    '(run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))'
)
SAVE = 'save_result(run, [Result("it ran", True)], {"seed": seed})'
WAIT = 'import time\n(run.path / "started").touch()\nfor _ in range(600): time.sleep(0.1)'


@pytest.fixture
def notebook(tmp_path):
    """Writes `grid.ipynb` with these cells and returns its path as text."""
    path = tmp_path / "grid.ipynb"
    return lambda *cells: str(write_notebook(path, *cells, parameters=PARAMETERS, setup=SETUP, save=SAVE))


@pytest.fixture
def known(notebook):
    return notebook_parameters(notebook(TRAIN))


FULL = {"seed": 0, "learning_rate": 1e-4, "model": "starter", "title": "a"}


# --- one run ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def hand_made(tmp_path):
    """Writes `hand_made.ipynb` and returns its path as text."""
    return lambda: str(write_notebook(tmp_path / "hand_made.ipynb"))


def test_wrong_parameters_leave_no_run_behind(hand_made, tmp_path):
    for params in ({"stepz": 3}, {"steps": "many"}, {"steps": 101}, {"out_dir": "/x"}, {"interactive": True}):
        with pytest.raises(ParameterError, match=next(iter(params))):
            plan_run(hand_made(), params, root=tmp_path / "runs")
    assert list_runs(tmp_path / "runs") == []


def test_a_run_records_every_parameter_the_runner_does_not_set(hand_made, tmp_path):
    planned = plan_run(hand_made(), {"steps": "7"}, root=tmp_path / "runs")
    assert (str(planned), planned.to_run, planned.state) == ("run    hand_made", True, "not started")
    assert list_runs(tmp_path / "runs") == []
    run = planned.prepare()
    assert list_runs(tmp_path / "runs") == [run]
    assert run.params == {"seed": 0, "steps": 7}
    assert run.status["state"] == "queued"


def test_a_relative_path_means_the_same_in_the_runs_own_folder(tmp_path, monkeypatch):
    path = str(write_notebook(tmp_path / "n.ipynb", parameters='seed: int = 0\nmodel: str = "starter"  # what'))
    for folder in ("mine/model", "ckpt", "starter"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    asked = ["mine/model", "ckpt", "starter", "Qwen/Qwen2-0.5B-Instruct"]
    got = [plan_run(path, {"model": m}, root=tmp_path / "runs").params["model"] for m in asked]
    assert got == [str(tmp_path / "mine/model"), str(tmp_path / "ckpt"), "starter", "Qwen/Qwen2-0.5B-Instruct"]


def test_resume_finds_the_last_unfinished_run_of_its_parameters(hand_made, tmp_path):
    path, root = hand_made(), tmp_path / "runs"
    old, new, other, done = (plan_run(path, {"steps": n}, root=root).prepare() for n in (3, 3, 4, 3))
    for run, state in ((old, "interrupted"), (new, "failed"), (other, "interrupted"), (done, "done")):
        set_status(run.path, state)
        lock.let_go(run.path)
    for params, resume, found in ({}, "", new), ({}, old.id, old), ({}, str(old.path), old), ({"steps": 4}, "", other):
        assert plan_run(path, params, root=root, resume=resume).run == found
    assert old.status["state"] == "interrupted"
    assert plan_run(path, {}, root=root, resume=old.id).prepare().status["state"] == "queued"


@pytest.mark.parametrize(("meanwhile", "then"), [("done", "skip"), ("running", "leave"), ("failed", "resume")])
def test_a_plan_is_looked_at_again_when_a_run_s_turn_comes(hand_made, tmp_path, meanwhile, then):
    path, root = hand_made(), tmp_path / "runs"
    set_status(plan_run(path, {}, root=root).prepare().path, "interrupted")
    entry = plan_run(path, {}, root=root, resume="")
    set_status(entry.run.path, meanwhile)  # hours later
    assert len(claim([entry])) == (then == "resume")
    assert entry.action == then
    if meanwhile == "done":
        with pytest.raises(RunError, match=r"this run is done; process .* has executed it"):
            entry.prepare()


def test_a_point_begun_by_another_sweep_is_not_run_twice(notebook, tmp_path):
    path, root = notebook(), tmp_path / "runs"
    first, second = (plan_sweep(str(path), {"seed": "0..1"}, root) for _ in range(2))
    run = first[0].prepare()
    assert claim(second[:1]) == [] and (second[0].action, second[0].run) == ("leave", run)
    assert claim([plan_run(str(path), {"seed": "0"}, root=root)]) != [run]  # `run` makes a new one
    script = (
        "import sys; from pathlib import Path; from workbench.lab.batch.plan import claim, plan_sweep\n"
        "entry = plan_sweep(sys.argv[1], {'seed': '1'}, Path(sys.argv[2]))[0]; print('planned', flush=True)\n"
        "input(); print((claim([entry]), entry.action)[1], flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    sweeps = [subprocess.Popen([sys.executable, "-c", script, path, str(root)], **pipes) for _ in range(2)]
    assert [sweep.stdout.readline() for sweep in sweeps] == ["planned\n"] * 2
    for sweep in sweeps:  # in the same moment
        sweep.stdin.write("\n")
        sweep.stdin.flush()
    assert sorted(sweep.stdout.readline() for sweep in sweeps) == ["leave\n", "run\n"]
    for sweep in sweeps:
        sweep.communicate("\n")


def test_a_folder_of_another_user_is_named_with_the_way_out(notebook, tmp_path, monkeypatch):
    (entry,) = plan_sweep(notebook(), {"seed": "0"}, tmp_path / "runs")

    def refuses(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "mkdir", refuses)
    with pytest.raises(RunError, match="runs/grid: you may not write there; name a folder of your own with --runs-dir"):
        claim([entry])


def test_a_sweep_takes_no_point_while_another_one_looks(notebook, tmp_path, monkeypatch):
    (entry,) = plan_sweep(notebook(), {"seed": "0"}, tmp_path / "runs")
    folder = tmp_path / "runs" / "grid"
    folder.mkdir(parents=True)
    number = os.open(folder / lock.LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(number, fcntl.LOCK_EX)  # as another process has it
    monkeypatch.setattr(lock, "alone_in", functools.partial(lock.alone_in, wait=0.1))
    with pytest.raises(RunError, match=r"another process has held its run.lock"):
        claim([entry])
    assert list_runs(tmp_path / "runs") == []
    os.close(number)
    assert claim([entry]) == list_runs(tmp_path / "runs")


def test_only_a_run_of_the_same_notebook_is_resumed_by_any_name(hand_made, tmp_path):
    path, root = hand_made(), tmp_path / "runs"
    run = plan_run(path, {}, root=root).prepare()
    set_status(run.path, "interrupted")
    assert plan_run(path, {}, root=root, resume=f"{run.notebook}/{run.id}").run == run
    other = shutil.copy(path, tmp_path / "other.ipynb")
    with pytest.raises(ParameterError, match=f"a run of {run.notebook}, not of other; name that notebook"):
        plan_run(str(other), {}, root=root, resume=str(run.path))


def test_resume_refuses_other_parameters_and_done_or_going_runs(hand_made, tmp_path):
    path, root = hand_made(), tmp_path / "runs"
    run = plan_run(path, {"steps": 3}, root=root).prepare()
    with pytest.raises(RunError, match="queued"):
        plan_run(path, {}, root=root, resume=run.id)
    set_status(run.path, "done")
    with pytest.raises(RunError, match=r"nothing to resume.*\(done\)"):
        plan_run(path, {}, root=root, resume="")
    set_status(run.path, "interrupted")
    with pytest.raises(ParameterError, match="parameter steps=4: the run to resume has 3"):
        plan_run(path, {"steps": 4}, root=root, resume=run.id)
    with pytest.raises(
        RunError, match=f"--resume last: not a run folder, and no run of .* the newest are {run.id}. Without"
    ):
        plan_run(path, {}, root=root, resume="last")


def test_a_run_with_another_default_is_offered_for_resuming(hand_made, tmp_path):
    """The notebook of an older version had another default: nothing has exactly these parameters."""
    path, root = hand_made(), tmp_path / "runs"
    run = plan_run(path, {"steps": 3}, root=root).prepare()
    write_json(run.path / "params.json", run.params | {"seed": 99})
    set_status(run.path, "interrupted")
    offered = (
        rf"parameters: none; with the given ones and other defaults: {run.id} \(interrupted\); name one with --resume"
    )
    with pytest.raises(RunError, match=offered):
        plan_run(path, {"steps": 3}, root=root, resume="")
    with pytest.raises(RunError, match=r"parameters: none$"):
        plan_run(path, {"steps": 4}, root=root, resume="")


def test_a_run_of_parameters_the_notebook_lacks_is_not_resumed(hand_made, tmp_path):
    path, root = hand_made(), tmp_path / "runs"
    for params in ({"fail = 0\nimport os\nfail": 1}, {"steps": 1000}, {"steps": None}):
        run = write_run(root, f"2026-{len(list_runs(root))}", notebook="hand_made", state="failed", params=params)
        with pytest.raises(ParameterError, match=rf"{run.id}/params.json: .*such a run cannot be resumed"):
            plan_run(path, {}, root=root, resume=run.id)


def test_a_name_that_would_put_runs_elsewhere_is_refused(tmp_path):
    for name in ("...ipynb", ".hidden.ipynb", "a\x1b[31m.ipynb", "a\nb.ipynb"):
        path = write_notebook(tmp_path / "notebooks" / name)
        with pytest.raises(ParameterError, match="its name is also the name of a folder"):
            plan_run(str(path), {}, root=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


# --- the grid --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, values",
    [({"seed": "0..4"}, [0, 1, 2, 3, 4]), ({"seed": "3"}, [3]), ({"seed": "1,4..6, 9"}, [1, 4, 5, 6, 9]),
     ({"learning_rate": "1e-4,3e-4"}, [1e-4, 3e-4]), ({"model": "starter,other"}, ["starter", "other"]),
     ({"title": "1..3"}, ["1..3"])]
)  # fmt: skip
def test_ranges_are_for_ints_and_commas_separate_values(known, given, values):
    assert list(parse_grid(known, given).values()) == [values]


@pytest.mark.parametrize(
    "given, message",
    [({"seeds": "0..4"}, "unknown parameter 'seeds': did you mean 'seed'"), ({"seed": "4..0"}, "the range is empty"),
     ({"seed": "0..1001"}, "seed=1001: expected int in 0..1000"), ({"seed": "0,1,0"}, "the list has a value twice"),
     ({"seed": "0,,1"}, "seed=''"), ({"seed": "0..x"}, r"seed='0\.\.x': expected int"),
     ({"learning_rate": "1e-4..3e-4"}, "expected float"), ({"model": "starter,none"}, "expected one of starter, other"),
     ({"out_dir": "x"}, "'out_dir' is set by the runner"), ({"seed": "0..100000000"}, "at most 10000 runs")]
)  # fmt: skip
def test_a_wrong_value_in_the_grid_is_refused_before_any_start(notebook, tmp_path, given, message):
    with pytest.raises(ParameterError, match=message):
        plan_sweep(notebook(TRAIN), given, tmp_path / "runs")
    assert list_runs(tmp_path / "runs") == []


def test_a_grid_of_too_many_points_is_refused(notebook, tmp_path):
    with pytest.raises(ParameterError, match="the grid has 1002000 points"):
        plan_sweep(notebook(TRAIN), {"seed": "0..999", "title": ",".join(map(str, range(1002)))}, tmp_path)


def test_the_plan_is_the_grid_with_the_last_parameter_fastest(notebook, tmp_path):
    plan = plan_sweep(notebook(TRAIN), {"seed": "0..1", "learning_rate": "1e-4,3e-4", "title": "b"}, tmp_path)
    assert [(e.varied["seed"], e.varied["learning_rate"]) for e in plan] == [(0, 1e-4), (0, 3e-4), (1, 1e-4), (1, 3e-4)]
    assert plan[0].params == FULL | {"title": "b"}
    assert plan[0].name == "seed=0, learning_rate=0.0001"
    assert {e.action for e in plan} == {"run"}


def test_done_runs_are_skipped_open_ones_go_on_running_ones_stay(notebook, tmp_path):
    for seed, state in enumerate(("done", "interrupted", "failed", "running")):
        about = {"notebook": "grid", "params": FULL | {"seed": seed}}
        run = write_run(tmp_path / "runs", str(seed), executed=notebook(TRAIN), **about)
        lock.hold(run.path) if state == "running" else None
        set_status(run.path, state)
    write_run(tmp_path / "runs", "9", notebook="grid", params=FULL | {"seed": 4, "title": "other"})
    plan = plan_sweep(notebook(TRAIN), {"seed": "0..4"}, tmp_path / "runs")
    assert [e.action for e in plan] == ["skip", "resume", "resume", "leave", "run"]
    assert plan[1].run.id == "1"


def test_what_other_code_has_done_is_not_done(notebook, tmp_path):
    """A notebook that was changed since, or another one of that name."""
    path, root = notebook(), tmp_path / "runs"
    for entry in plan_sweep(path, {"seed": "0..1"}, root):
        run = entry.prepare()
        record_execution(run, {"code": code_of(Path(path))})
        set_status(run.path, "done")
    assert [e.action for e in plan_sweep(path, {"seed": "0..1"}, root)] == ["skip", "skip"]
    text = Path(path).read_text()
    Path(path).write_text(text.replace("seed: int = 0", "seed: int = 1"))  # a parameter's default is no code
    assert [e.action for e in plan_sweep(path, {"seed": "0..1"}, root)] == ["skip", "skip"]
    Path(path).write_text(text.replace("save_result(", "print(); save_result("))
    plan = plan_sweep(path, {"seed": "0..2"}, root)
    assert [e.action for e in plan] == ["run", "run", "run"]
    done = [one.id for one in list_runs(root)]
    lines = [f"run    seed={n}  ({done[n]} is done, with other code)" for n in range(2)]
    assert [str(e) for e in plan] == [*lines, "run    seed=2"]


def as_executed(run, path, state, **how):
    record_execution(run, {"path": path, "code": code_of(Path(path)), "cwd": str(Path(path).parent), **how})
    set_status(run.path, state)


def test_a_run_in_another_folder_is_not_this_one(notebook, tmp_path, capsys):
    """A sweep called runs done that had read other data, and a resumed run silently went on in another folder."""
    path, root, there = notebook(), tmp_path / "runs", str(tmp_path)
    (tmp_path / "a").mkdir()
    first = {"cwd": str(tmp_path / "a")}
    for entry, state in zip(plan_sweep(path, {"seed": "0..1"}, root, how=first), ("done", "failed"), strict=True):
        as_executed(entry.prepare(), path, state, **first)
    assert [e.action for e in plan_sweep(path, {"seed": "0..1"}, root, how=first)] == ["skip", "resume"]
    for how in ({}, {"cwd": there}, first | {"kernel": "python3"}):
        plan = plan_sweep(path, {"seed": "0..1"}, root, how=how)
        assert [e.action for e in plan] == ["run", "run"] and str(plan[0]).endswith(
            "other kernel or in another folder)"
        )
    entry = plan_run(path, {"seed": 1}, root=root, resume="")
    assert entry.how["cwd"] == first["cwd"]
    with pytest.raises(RunError, match="nothing to resume"):
        plan_run(path, {"seed": 1}, root=root, resume="", how={"cwd": there})
    plan_run(path, {}, root=root, resume=entry.run.id, how={"cwd": there}).prepare()
    assert f"was executed with --cwd {first['cwd']}, and goes on with the notebook's own" in capsys.readouterr().err


def test_a_namesake_does_not_take_over_a_failed_run(notebook, tmp_path, capsys):
    path, root = notebook(TRAIN), tmp_path / "runs"
    run = plan_run(path, {}, root=root).prepare()
    as_executed(run, path, "failed")
    namesake = shutil.copy(path, str(tmp_path / "copy.ipynb"))
    other = tmp_path / "b" / "grid.ipynb"
    other.parent.mkdir()
    shutil.copy(path, other)
    assert plan_run(str(other), {}, root=root, resume="").run == run  # the same code
    other.write_text(Path(namesake).read_text().replace("save_result(", "print(); save_result("))
    with pytest.raises(RunError, match="nothing to resume"):
        plan_run(str(other), {}, root=root, resume="")
    assert plan_sweep(str(other), {"seed": "0"}, root)[0].action == "run"
    plan_run(str(other), {}, root=root, resume=run.id).prepare()
    assert f"was executed from {path}, and goes on with {other}" in capsys.readouterr().err
    set_status(run.path, "failed")
    Path(path).unlink()  # it was moved
    assert plan_run(str(other), {}, root=root, resume="").run == run


def test_a_name_that_an_untagged_cell_assigns_is_refused(tmp_path):
    path = tmp_path / "untagged.ipynb"
    path.write_text(
        json.dumps(v4.new_notebook(cells=[v4.new_code_cell("import os"), v4.new_code_cell("seed, lr = 0, 0.1")]))
    )
    for plan in (
        lambda: plan_run(str(path), {"seed": 1}),
        lambda: plan_sweep(str(path), {"seed": "1,2"}, fixed={"x": 1}),
    ):
        with pytest.raises(ParameterError, match=r"parameter 'seed': code cell 2 of .* assigns it.*tag the cell"):
            plan()
    assert plan_run(str(path), {"other": 1}, root=tmp_path).params == {"other": 1}


def test_lists_and_ranges_are_values_of_what_is_computed_too():
    known = parse_parameters("seed = int(os.environ.get('SEED', 0))\nlayers = [0]\nlimit: Optional[int] = None")
    assert parse_grid(known, {"seed": "0..2", "layers": "[1,2],[3]", "limit": "1..2"}) == {
        "seed": [0, 1, 2], "layers": [[1, 2], [3]], "limit": [1, 2],
    }  # fmt: skip


def test_a_comma_within_a_list_or_a_mapping_separates_no_values():
    known = parse_parameters("layers = [[0], [1]]\nweights = {'a': 1}\nbetas = (0.9, 0.99)\nfree = None")
    given = {"layers": "[[0, 1], [2]], [[3]]", "weights": "{'a': 1, 'b': 2}", "betas": "(0.9, 0.95)"}
    assert parse_grid(known, given | {"free": "{'a': 1, 'b': 2},3"}) == {
        "layers": [[[0, 1], [2]], [[3]]],
        "weights": [{"a": 1, "b": 2}],
        "betas": ["(0.9, 0.95)"],
        "free": [{"a": 1, "b": 2}, 3],
    }


def test_a_plan_reads_each_runs_parameters_once(notebook, tmp_path, monkeypatch):
    for seed in range(20):
        about = {"params": FULL | {"seed": seed}}
        write_run(tmp_path / "runs", f"2026-{seed:02}", notebook="grid", executed=notebook(TRAIN), **about)
        write_run(tmp_path / "runs", f"2026-{seed:02}", notebook="other", **about)
    read, plain = [], Run.params.fget
    monkeypatch.setattr(Run, "params", property(lambda run: read.append(run) or plain(run)))
    plan = plan_sweep(notebook(TRAIN), {"seed": "10..29"}, tmp_path / "runs")
    assert [e.action for e in plan] == ["skip"] * 10 + ["run"] * 10
    assert len(read) == len(set(read)) == 20


def test_a_claim_reads_the_runs_that_are_new_since_the_last_one(notebook, tmp_path, monkeypatch):
    plan = plan_sweep(notebook(), {"seed": "0..19"}, tmp_path / "runs")
    write_run(tmp_path / "runs", "made-meanwhile", notebook="grid", params=FULL | {"seed": 19}, state="queued")
    read, plain = [], Run.params.fget
    monkeypatch.setattr(Run, "params", property(lambda run: read.append(run) or plain(run)))
    assert [len(claim([entry])) for entry in plan] == [1] * 19 + [0]
    assert len(read) == len(set(read)) == 20


def test_code_that_changed_since_the_plan_is_not_begun(notebook, tmp_path):
    path = notebook()
    plan = plan_sweep(path, {"seed": "0..1"}, tmp_path / "runs")
    (run,) = claim(plan[:1])
    notebook("print('edited')")
    with pytest.raises(RunError, match=r"grid.ipynb: has changed since the run was planned; start the command again"):
        claim(plan[1:])
    assert list_runs(tmp_path / "runs") == [run]


def test_runs_that_cannot_be_read_are_named_and_stop_no_plan(notebook, tmp_path):
    about = {"notebook": "grid", "executed": notebook(TRAIN)}
    runs = [write_run(tmp_path / "runs", str(n), params=FULL | {"seed": n}, **about) for n in range(4)]
    (runs[0].path / "params.json").write_text("[]")
    (runs[1].path / "status.json").write_text("{}")
    (runs[2].path / "params.json").write_text('{"seed": [2]}')
    with pytest.warns(UserWarning) as warned:
        plan = plan_sweep(notebook(TRAIN), {"seed": "0..3"}, tmp_path / "runs")
    assert [e.action for e in plan] == ["run", "run", "run", "skip"]
    assert [str(runs[n].path) in str(w.message) for n, w in enumerate(warned)] == [True, True]


def test_the_plan_says_what_the_audit_found_in_a_done_run(notebook, tmp_path):
    """Of a run in which no step changed anything a sweep said "done" and no more."""
    about = {"notebook": "grid", "executed": notebook(TRAIN)}
    runs = [write_run(tmp_path / "runs", f"2026-{n}", params=FULL | {"seed": n}, **about) for n in range(3)]
    with_problem(runs[0])
    (runs[1].path / "audit.json").write_text("{")
    assert [str(entry) for entry in plan_sweep(notebook(TRAIN), {"seed": "0..2"}, tmp_path / "runs")] == [
        "skip   seed=0  (2026-0, done, audit: problem zero-gradient)",
        "skip   seed=1  (2026-1, done)",
        "skip   seed=2  (2026-2, done)",
    ]
    audit = with_problem(runs[2]).audit
    audit["trainings"][0]["findings"][0]["title"] = "\x1b[2Jmasked\n"  # of a run that anyone wrote
    write_json(runs[2].path / "audit.json", audit)
    assert str(plan_sweep(notebook(TRAIN), {"seed": "2"}, tmp_path / "runs")[0]).endswith(r"problem \x1b[2Jmasked\n)")


def test_a_dry_run_prints_the_plan_and_starts_nothing(notebook, tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "runs", "2026-1", notebook="grid", params=FULL | {"seed": 1}, executed=notebook(TRAIN))
    arguments = ["sweep", notebook(TRAIN), "-p", "seed=0..2", "--dry-run", "--runs-dir", tmp_path / "runs"]
    plan = (
        "run    seed=0\nskip   seed=1  (2026-1, done)\nrun    seed=2\n"
        f"       folder      {tmp_path / 'runs' / 'grid' / 'TIME'}\n"
        "       parameters  learning_rate=0.0001, model='starter', title='a'\n"
        "       GPUs        none visible here\n"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert call(capsys, *arguments) == (0, plan, "")
    assert len(list_runs(tmp_path / "runs")) == 1
    assert call(capsys, *arguments, "--jobs", "0")[:2] == (2, "")
    assert call(capsys, "sweep", notebook(TRAIN), "-p", "seed=5..2", "--dry-run")[:2] == (2, "")


# --- for real --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sweep_runs_the_grid_and_reports_it(notebook, tmp_path):
    sweep = workbench("sweep", notebook(TRAIN), "-p", "seed=0..2", "--jobs", "2", "--runs-dir", tmp_path / "runs")
    assert sweep.returncode == 0, sweep.stderr
    assert "[3/3]" in sweep.stderr
    assert "3 of 3 runs are done" in sweep.stdout
    assert sorted(r.params["seed"] for r in list_runs(tmp_path / "runs")) == [0, 1, 2]
    assert "run (3 seeds)" in (tmp_path / "reports" / "grid-seed=0..2.html").read_text()


@pytest.mark.slow
def test_a_failed_run_stops_no_other_and_the_exit_code_says_so(notebook, tmp_path):
    cell = "1 / (seed - 1)\nif seed == 2:\n    (run.path / 'result.json').write_text('[1]')\n    raise SystemExit"
    process = workbench("sweep", notebook(TRAIN, cell), "-p", "seed=0..3", "--runs-dir", tmp_path / "runs")
    assert process.returncode == 1
    assert "seed=1: failed: cell" in process.stderr
    assert "2 of 4 runs are done" in process.stdout
    states = {r.params["seed"]: r.status["state"] for r in list_runs(tmp_path / "runs")}
    assert states == {0: "done", 1: "failed", 2: "failed", 3: "done"}


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_all_children_and_the_next_sweep_resumes(notebook, tmp_path, how):
    root = tmp_path / "runs"
    path = notebook(TRAIN, f'if not (run.path / "started").exists():\n    {WAIT.replace(chr(10), chr(10) + "    ")}')
    command = [sys.executable, "-m", "workbench", "sweep", path, "-p", "seed=0..2", "--jobs", "2"]
    command += ["--runs-dir", str(root)]
    runner = subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        until(lambda: len(list(root.glob("grid/*/started"))) == 2, "both to start")
        runner.send_signal(how)
        assert runner.wait(60) == 130
    finally:
        runner.kill()
    assert runner.stderr.read().decode().endswith("workbench: interrupted\n")
    before = list_runs(root)
    assert [r.status["state"] for r in before] == ["interrupted"] * 2
    process = workbench("sweep", path, "-p", "seed=0..1", "--runs-dir", root)
    assert process.returncode == 0, process.stderr
    assert [r.path for r in list_runs(root)] == [r.path for r in before]
    assert {r.status["state"] for r in before} == {"done"}
