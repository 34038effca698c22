"""What counts as the code of a run: each case has a notebook, the files next to it, and an edit of one of them."""

import os

import pytest
from conftest import write_notebook

from workbench.errors import ParameterError, RunError
from workbench.lab.batch.code import check_unchanged, code_files, code_of

LITERALS = "seed: int = 0  # of everything; 0..9\ntitle = 'a'"
HELPERS = {"helpers.py": "value = 1"}
DEEPER = {"helpers.py": "from deeper import value", "deeper.py": "value = 1"}
PACKAGE = {"pack/__init__.py": "", "pack/inner/loss.py": "value = 1"}


def write(folder, cell="pass", files=(), parameters=LITERALS):
    for name, text in dict(files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return write_notebook(folder / "n.ipynb", cell, parameters=parameters, setup="", save="")


@pytest.mark.parametrize(
    "before, after",
    [("lr = 1 / 3", "lr = 1 / 2"), ("print(1)", "print(2)"), ("sizes = (1, 2)", "sizes = (1, 3)"),
     ("n = 2\nm = n * n", "n = 3\nm = n * n"), ("%env A=1", "%env A=2")]
)  # fmt: skip
def test_what_params_json_lacks_of_the_parameters_cell_is_code(tmp_path, before, after):
    codes = {code_of(write(tmp_path, parameters=f"{LITERALS}\n{text}")) for text in (before, after)}
    assert len(codes) == 2


def test_recorded_values_and_comments_of_parameters_are_no_code(tmp_path):
    same = (LITERALS, "seed: int = 7  # anything\ntitle = 'b'", "# a note\nseed: int = 0\ntitle = 'a'  # named")
    assert len({code_of(write(tmp_path, parameters=text)) for text in same}) == 1


@pytest.mark.parametrize(
    "cell, files, edited",
    [("import os, helpers", HELPERS, "helpers.py"), ("def f():\n    import helpers", HELPERS, "helpers.py"),
     ("%matplotlib inline\nimport helpers", HELPERS, "helpers.py"), ("%%time\nimport helpers", HELPERS, "helpers.py"),
     ("import helpers", DEEPER, "deeper.py"), ("%run helpers.py", DEEPER, "deeper.py"),
     ("import pack", PACKAGE, "pack/inner/loss.py"), ("%run helpers -v", HELPERS, "helpers.py"),
     ("%load helpers.py", HELPERS, "helpers.py"), ("!python helpers.py", HELPERS, "helpers.py"),
     ("%%bash\npython helpers.py --fast", HELPERS, "helpers.py"),
     ("import runpy; runpy.run_path('helpers.py')", HELPERS, "helpers.py"),
     ("import sys; sys.path.insert(0, 'src')\nimport helpers", {"src/helpers.py": "1"}, "src/helpers.py"),
     ("exec(open('code.txt').read())", {"code.txt": "value = 1"}, "code.txt")]
)  # fmt: skip
def test_own_modules_and_scripts_that_a_notebook_uses_are_code(tmp_path, cell, files, edited):
    path = write(tmp_path, cell, files)
    before = code_of(path)
    (tmp_path / edited).write_text("value = 2")
    assert code_of(path) != before


def test_a_notebook_that_is_run_by_another_is_code(tmp_path):
    """With its parameters, which no run records."""
    inner = {"setup": "", "save": ""}
    write_notebook(tmp_path / "inner.ipynb", "import helpers", parameters="rate = 0.1", **inner)
    path = write(tmp_path, "%run inner.ipynb", HELPERS)
    codes = [code_of(path)]
    (tmp_path / "helpers.py").write_text("value = 2")
    codes.append(code_of(path))
    write_notebook(tmp_path / "inner.ipynb", "import helpers", parameters="rate = 0.2", **inner)
    assert len({*codes, code_of(path)}) == 3


def test_files_that_a_notebook_does_not_run_are_no_code(tmp_path, monkeypatch):
    """A data file, a module that nothing imports, and a package that was installed, which `env.json` names."""
    installed = {"lib/pandas.py": "value = 1", "lib/pandas-1.dist-info/METADATA": ""}
    path = write(tmp_path, "import pandas, workbench\nopen('data.csv')\nprint('see helpers.py')",
                 installed | HELPERS | {"data.csv": "1"})  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    before = code_of(path)
    for name in ("lib/pandas.py", "helpers.py", "data.csv"):
        (tmp_path / name).write_text("2")
    assert code_of(path) == before


@pytest.mark.parametrize(
    "cell",
    [
        "%%writefile written_here.py\nvalue = 1",
        "open('written_here.py', 'w').write('')",
        "Path('written_here.py').write_text('')",
    ],
)
def test_a_module_that_the_notebook_writes_itself_is_no_code(tmp_path, cell):
    """It is there from the second run on, and each run may write another."""
    write_notebook(tmp_path / "n.ipynb", cell, "import written_here", setup="", save="")
    codes = [code_of(tmp_path / "n.ipynb")]
    for text in ("value = 1", "value = 2"):
        (tmp_path / "written_here.py").write_text(text)
        codes.append(code_of(tmp_path / "n.ipynb"))
    assert len(set(codes)) == 1


def test_modules_of_the_kernels_folder_and_pythonpath_are_code(tmp_path, monkeypatch):
    path = write(tmp_path, "import helpers", {"cwd/helpers.py": "1", "path/helpers.py": "1"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    before = [code_of(path), code_of(path, str(tmp_path / "cwd"))]
    (tmp_path / "path" / "helpers.py").write_text("2")
    (tmp_path / "cwd" / "helpers.py").write_text("3")
    after = [code_of(path), code_of(path, str(tmp_path / "cwd"))]
    assert len({*before, *after}) == 3  # before, both were the same text


def test_code_is_the_same_in_another_folder(tmp_path):
    cell = "import helpers\n%run deeper.py"
    codes = {code_of(write(tmp_path / name, cell, DEEPER | PACKAGE)) for name in ("a", "b/c")}
    assert len(codes) == 1


def test_code_that_is_no_python_counts_as_its_text(tmp_path):
    assert code_of(write(tmp_path, "this is not (")) != code_of(write(tmp_path, "this is not ["))


def test_a_magic_whose_file_is_named_later_is_code_as_any(tmp_path):
    cells = [f"get_ipython().run_cell_magic('writefile', name, {body})" for body in ("text", "other")]
    assert code_of(write(tmp_path / "a", cells[0])) != code_of(write(tmp_path / "b", cells[1]))


def test_other_code_than_was_planned_and_no_notebook_are_refused(tmp_path):
    path = write(tmp_path, "import helpers", HELPERS)
    planned = code_files(path)
    assert [*map(os.path.basename, planned)] == ["n.ipynb", "helpers.py"]
    write(tmp_path, "import helpers", parameters=LITERALS.replace("0", "1", 1))
    check_unchanged(planned | {"/elsewhere/module.py": "as seen from the machine that planned it"})
    (tmp_path / "helpers.py").write_text("value = 2")
    with pytest.raises(RunError, match=r"^\S*/helpers.py: has changed since the run was planned"):
        check_unchanged(planned)
    path.write_text('{"cells": [')
    with pytest.raises(ParameterError, match="not a notebook of format 4"):
        check_unchanged(planned)
