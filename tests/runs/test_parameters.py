import json

import nbformat
import papermill
import pytest
from conftest import NOTEBOOKS, write_notebook
from hypothesis import given
from hypothesis import strategies as st
from secret_texts import COMMIT

from workbench.errors import ParameterError
from workbench.runs.parameters import (
    COMPUTED,
    Parameter,
    check_parameters,
    command_line,
    notebook_parameters,
    parse_assignments,
    parse_parameters,
    repeat_command,
)

CELL = """\
seed: int = 0  # of everything; 0..1000
out_dir: str = ""  # run folder
interactive: bool = True  # widgets
learning_rate: float = 3e-4  # 0 for the recipe's; 0..1
backend: str = "transformers"  # who samples; one of transformers, vllm"""


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return notebook_parameters(write_notebook(tmp_path_factory.mktemp("nb") / "n.ipynb", parameters=CELL))


def of_cell(folder, cell: str):
    return notebook_parameters(write_notebook(folder / "n.ipynb", parameters=cell))


# --- reading the cell ----------------------------------------------------------------------------------------------


def test_a_cell_gives_name_type_default_help_range_and_choices(known):
    assert list(known) == ["seed", "out_dir", "interactive", "learning_rate", "backend"]
    seed, rate, backend = known["seed"], known["learning_rate"], known["backend"]
    assert (seed.type, seed.default, seed.help, seed.low, seed.high) == ("int", 0, "of everything", 0, 1000)
    assert (rate.type, rate.default, rate.expected) == ("float", 3e-4, "float in 0..1")
    assert (backend.choices, backend.expected) == (("transformers", "vllm"), "one of transformers, vllm")


@pytest.mark.parametrize(
    ("line", "kind", "default"),
    [("steps = 3", "number", 3), ("lr = 0.5", "number", 0.5), ("who = 'me'", "str", "me"), ("flag = True", "bool", True),
     ("stop = None", "any", None), ("layers = [0, 1]", "list", [0, 1]), ("lr: float = 1 / 3", "float", COMPUTED),
     ("twice = seed * 2", "any", COMPUTED), ("pair = (1, 2)", "any", COMPUTED), ("n: Optional[int] = None", "int", None),
     ("n: int = None", "int", None), ("n: int | float = 3", "number", 3),
     ("rate: float | str = 'auto'", "any", "auto"), ("n: int | str = 5", "any", 5),
     ("who: Literal['a', 'b'] = 'a'", "str", "a"), ("big = 1e999", "any", COMPUTED), ("flag: bool = 1", "any", 1)]
)  # fmt: skip
def test_any_assignment_is_a_parameter_read_as_its_default_is(tmp_path, line, kind, default):
    found = of_cell(tmp_path, f'"""Doc."""\nimport os\n%matplotlib inline\nseed: int = 0\nprint(seed)\n{line}  # help')
    assert next(iter(found)) == "seed" and len(found) == 2
    (parameter,) = [p for name, p in found.items() if name != "seed"]
    assert (parameter.type, parameter.default, parameter.help) == (kind, default, "help")


def test_what_the_cell_computes_is_not_undone(tmp_path):
    """Its literals were injected behind it: a smoke switch, `+=` and `append` had no effect in a run."""
    cell = "steps: int = 100\nif os.environ.get('SMOKE'): steps = 5\nname = 'a'\nname += 'x'\nseeds = [0]\nseeds.append(1)\n"
    found = of_cell(tmp_path, f"{cell}layers = [0]\nlayers[0] = 2\nrate = 0.1\nprint(rate)\nrate = 0.2")
    assert {name: p.default for name, p in found.items()} == {
        **dict.fromkeys(("steps", "name", "seeds", "layers"), COMPUTED),
        "rate": 0.2,
    }
    assert check_parameters(found, {"steps": "7"}) == {"steps": 7}


def test_values_of_untyped_parameters_are_read_as_literals():
    known = parse_parameters("n = 1\nany = None\nlr: float = 1 / 3")
    texts = {"80": 80, "1e-4": 1e-4, "None": None, "true": True, "[1, 'a']": [1, "a"], "</s>": "</s>",
             "(1, 2)": "(1, 2)"}  # fmt: skip
    for text, value in texts.items():
        read = check_parameters(known, {"any": text})["any"]
        assert read == value and type(read) is type(value)
        assert check_parameters(known, {"any": read})["any"] == value
    assert check_parameters(known, {"n": "0.5", "lr": "1"}) == {"n": 0.5, "lr": 1.0}
    with pytest.raises(ParameterError, match="n='many': expected a number"):
        check_parameters(known, {"n": "many"})


@pytest.mark.parametrize("line", ["steps: int = 9  # x; 0..3", 'who: str = "me"  # x; one of you, them', "steps: int = ",
                                  "rate: float = 1e999"])  # fmt: skip
def test_a_default_outside_its_own_range_is_refused(tmp_path, line):
    with pytest.raises(ParameterError, match="parameters cell"):
        of_cell(tmp_path, f"seed: int = 0\n{line}")


def test_two_parameters_cells_are_refused(tmp_path):
    path = write_notebook(tmp_path / "n.ipynb", "import os")
    notebook = nbformat.read(path, 4)
    notebook.cells.append(nbformat.v4.new_code_cell("seed: int = 2", metadata=notebook.cells[0].metadata))
    path.write_text(nbformat.writes(notebook))
    with pytest.raises(ParameterError, match="2 cells are tagged `parameters`; expected one"):
        notebook_parameters(path)


def test_a_notebook_of_format_3_is_refused_with_what_rewrites_it(tmp_path):
    path = tmp_path / "old.ipynb"
    cell = {"cell_type": "code", "language": "python", "input": "seed = 1", "outputs": [], "metadata": {}}
    path.write_text(json.dumps({"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": [cell]}]}))
    with pytest.raises(
        ParameterError, match="of format 3, and format 4 runs here; `jupyter nbconvert --to notebook"
    ) as refused:
        notebook_parameters(path)
    assert str(refused.value).startswith(f"{path}: a notebook of format 3")


def test_bytes_that_are_no_text_are_refused_in_a_value():
    with pytest.raises(ParameterError, match=r"-p 'a=\\udcff': not UTF-8"):
        parse_assignments(["a=\udcff"])
    assert parse_assignments(["a=ü"]) == {"a": "ü"}


def test_a_line_may_end_as_on_an_old_mac():
    found = parse_parameters("a = 1  # first\rb = 2  # second\r\nc = 3  # third\n")
    assert [p.help for p in found.values()] == ["first", "second", "third"]


def test_without_a_parameters_cell_any_name_is_taken(tmp_path):
    path = write_notebook(tmp_path / "n.ipynb", "import os", parameters="")
    notebook = nbformat.read(path, 4)
    del notebook.cells[0]
    path.write_text(nbformat.writes(notebook))
    assert notebook_parameters(path) == {}
    assert check_parameters({}, {"anything": "3"}) == {"anything": 3}
    for name in ("fail = 0", "class", ""):
        with pytest.raises(ParameterError, match="expected a valid Python name"):
            check_parameters({}, {name: 1})


@pytest.mark.parametrize(
    ("line", "default", "help", "choices"),
    [('who: str = "ééééé"  # naïve; one of ééééé, b', "ééééé", "naïve", ("ééééé", "b")),
     ('stop: str = "#; 1..2"  # where to stop; at a string', "#; 1..2", "where to stop; at a string", None),
     ('text: str = """a\nb"""  # two lines', "a\nb", "two lines", None)]
)  # fmt: skip
def test_help_begins_behind_the_default_whatever_stands_in_it(tmp_path, line, default, help, choices):
    (parameter,) = of_cell(tmp_path, line).values()
    assert (parameter.default, parameter.help, parameter.choices, parameter.low) == (default, help, choices, None)


@pytest.mark.parametrize("limits", ["1e-9..1E-3", "0.000_000_001..1e-3"])
def test_limits_are_numbers_as_python_writes_them(tmp_path, limits):
    found = of_cell(tmp_path, f"rate: float = 1e-5  # how fast; {limits}")["rate"]
    assert (found.help, found.low, found.high) == ("how fast", 1e-9, 1e-3)


def test_a_whole_default_becomes_a_float_and_limits_are_in_full(tmp_path):
    assert type(of_cell(tmp_path, "rate: float = 0  # any")["rate"].default) is float
    assert of_cell(tmp_path, "steps: int = 1  # x; 1..1000000")["steps"].expected == "int in 1..1000000"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_papermill_sees_the_same_names_and_types(path):
    theirs = papermill.inspect_notebook(str(path))
    ours = notebook_parameters(path)
    assert list(theirs) == list(ours)
    assert {n: p["inferred_type_name"] for n, p in theirs.items()} == {n: p.type for n, p in ours.items()}


# --- checking values -----------------------------------------------------------------------------------------------


def test_an_unknown_parameter_gets_the_nearest_and_all_names(known):
    with pytest.raises(ParameterError, match=r"'learnin_rate': did you mean 'learning_rate'\?.*takes seed, out_dir"):
        check_parameters(known, {"learnin_rate": 1e-3})
    with pytest.raises(ParameterError, match=r"^unknown parameter 'zzz': this notebook takes"):
        check_parameters(known, {"zzz": 1})


@pytest.mark.parametrize(
    "given, expected",
    [({"seed": "7"}, 7), ({"seed": 7}, 7), ({"learning_rate": "1e-4"}, 1e-4), ({"learning_rate": 1}, 1.0),
     ({"interactive": "False"}, False), ({"interactive": "true"}, True), ({"backend": "vllm"}, "vllm"),
     ({"out_dir": "12"}, "12")]
)  # fmt: skip
def test_a_good_value_comes_back_as_its_parameter_s_type(known, given, expected):
    (value,) = check_parameters(known, given).values()
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "given",
    [{"seed": "three"}, {"seed": "1e3"}, {"seed": 1.0}, {"seed": True}, {"seed": None}, {"seed": "True"}, {"seed": ""},
     {"interactive": 1}, {"interactive": "1"}, {"interactive": "yes"}, {"out_dir": 3}, {"out_dir": None},
     {"learning_rate": True}, {"learning_rate": "fast"}, {"learning_rate": [1]}]
)  # fmt: skip
def test_a_value_of_another_type_is_refused_by_name(known, given):
    ((name, value),) = given.items()
    with pytest.raises(ParameterError) as caught:
        check_parameters(known, given)
    assert str(caught.value) == f"parameter {name}={value!r}: expected {known[name].expected}"


@pytest.mark.parametrize(
    ("given", "message"),
    [({"seed": "0..4"}, r"seed='0\.\.4': expected int in .*; only `workbench sweep` takes several values"),
     ({"learning_rate": "1e-4,3e-4"}, "expected float in .*; only `workbench sweep` takes several values"),
     ({"backend": "vllm,transformers"}, "expected one of .*; only `workbench sweep` takes several values"),
     ({"interactive": "1"}, "interactive='1': expected true or false$"),
     ({"backend": ""}, "backend='': expected one of transformers, vllm$"),
     ({"title": ""}, "title='': expected a text, such as the default 'a'$"),
     ({"seed": -1}, "seed=-1: expected int in 0..1000"), ({"seed": 1001}, "seed=1001: expected int in 0..1000"),
     ({"learning_rate": "1.01"}, "expected float in 0..1"), ({"backend": "VLLM"}, "expected one of transformers")]
)  # fmt: skip
def test_a_refusal_says_what_to_write_instead(known, given, message):
    known |= {"title": Parameter("title", "str", "a")}
    with pytest.raises(ParameterError, match=message):
        check_parameters(known, given)
    assert check_parameters(known, {"out_dir": ""}) == {"out_dir": ""}  # where the default is empty


@pytest.mark.parametrize("kind", ["str", "str | None", "None | str", "Optional[str]"])
def test_a_text_that_may_be_none_stays_a_text(tmp_path, kind):
    known = of_cell(tmp_path, f"tag: {kind} = None  # any")
    for text, read in (("42", "42"), ("1e3", "1e3"), ("None", None), (None, None)):
        assert check_parameters(known, {"tag": text}) == {"tag": read}
    assert known["tag"].expected == "str, or None"
    with pytest.raises(ParameterError, match=r"n='x': expected int in 1\.\.9, or None"):
        check_parameters(of_cell(tmp_path, "n: int | None = None  # any; 1..9"), {"n": "x"})


@pytest.mark.parametrize("cell", ["layers = [0, 1]", "layers: list = []", "layers: list[int] = [0, 1]"])
def test_a_list_is_not_read_from_other_values(tmp_path, cell):
    known = of_cell(tmp_path, cell)
    assert check_parameters(known, {"layers": "[2, 3]"}) == {"layers": [2, 3]}
    for wrong in ("7", "0,1", "(0, 1)", 7, "None"):  # a text would be walked through letter by letter
        with pytest.raises(ParameterError, match=r"layers=.*: expected a list, such as \[0, 1\]"):
            check_parameters(known, {"layers": wrong})
    with pytest.raises(ParameterError, match="options=7: expected a mapping"):
        check_parameters(of_cell(tmp_path, "options = {}"), {"options": "7"})


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", float("nan"), float("inf"), "1e999"])
def test_infinity_is_refused_even_where_any_number_goes(tmp_path, value):
    known = of_cell(tmp_path, "rate: float = 0.0  # any")
    with pytest.raises(ParameterError, match=r"parameter rate=.*expected float"):
        check_parameters(known, {"rate": value})


@pytest.mark.parametrize(
    "value", ["[1e400]", "{'a': [1, -1e400]}", [float("nan")], {"a": float("inf")}, {1: 2}], ids=str
)
def test_infinity_is_refused_within_a_list_or_a_mapping(tmp_path, value):
    cell = "value: dict = {}" if "{" in str(value) else "value: list = []"
    for known in (of_cell(tmp_path, cell), of_cell(tmp_path, "value = None")):
        with pytest.raises(ParameterError, match=r"parameter value=.*expected finite numbers"):
            check_parameters(known, {"value": value})


@given(st.integers(0, 1000), st.floats(0, 1), st.booleans())
def test_a_check_of_text_equals_a_check_of_the_value(known, seed, rate, flag):
    values = {"seed": seed, "learning_rate": rate, "interactive": flag}
    assert check_parameters(known, values) == check_parameters(known, {k: str(v) for k, v in values.items()}) == values


@given(st.text())
def test_any_text_gives_a_value_or_our_error(known, text):
    for name in known:
        try:
            check_parameters(known, {name: text})
        except ParameterError as error:
            assert name in str(error)


# --- the command line's form ---------------------------------------------------------------------------------------


def test_assignments_split_at_the_first_equals_sign():
    assert parse_assignments(["steps=80", "stop=a=b", "out="]) == {"steps": "80", "stop": "a=b", "out": ""}


@pytest.mark.parametrize("items, message", [(["steps"], "NAME=VALUE"), (["=3"], "NAME=VALUE"),
                                            (["a=1", "a=2"], "a is given twice, first as '1'")])  # fmt: skip
def test_a_wrong_assignment_says_what_was_expected(items, message):
    with pytest.raises(ParameterError, match=message):
        parse_assignments(items)


def test_the_command_to_repeat_a_run_names_what_is_no_default(known):
    params = {"seed": 3, "learning_rate": 3e-4, "backend": "vllm", "out_dir": "/x", "interactive": False, "stop": "a b"}
    assert repeat_command("nb", params, known) == "workbench run nb -p seed=3 -p backend=vllm -p 'stop=a b'"
    assert repeat_command("nb", {"seed": 0}, {}) == "workbench run nb -p seed=0"
    assert command_line("sweep", "nb", []) == "workbench sweep nb"


@pytest.mark.parametrize("source", ["a = (", "x: int = 1\0", "x: str = '\ud800"])
def test_a_cell_that_is_not_python_is_refused(source):
    with pytest.raises(ParameterError, match="not Python"):
        parse_parameters(source)


# --- access tokens -------------------------------------------------------------------------------------------------

TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrSt0123456789"
KNOWN = parse_parameters(
    "seed: int = 0  # any; 0..9\nrevision: str = ''  # a commit\nmodel: str = ''  # a name\nstops = None"
)


@pytest.mark.parametrize(
    "given",
    [{"model": TOKEN}, {"seed": TOKEN}, {"modell": TOKEN}, {TOKEN: 1}, {"model": "f" * 40}, {"model": f"https://a:{TOKEN}@x.org"},
     {"model": "AKIA" + "A1" * 8}, {"model": f"x HF_TOKEN={TOKEN[3:]}"}, {"api_key": TOKEN[3:]},
     {"stops": ["</s>", f"password: {TOKEN[3:]}"]}, {"stops": {"a": {"api_key": TOKEN[3:]}}}, {"stops": [["x", TOKEN]]},
     {"stops": {TOKEN: 1}}, {"cookie": TOKEN[3:]}, {"stops": {"name": "HF_TOKEN", "value": TOKEN[3:]}},
     {"stops": f"['--api-key', '{TOKEN[3:]}']"}, {"stops": ["f" * 40]}]
)  # fmt: skip
def test_a_token_as_parameter_is_refused_without_being_repeated(given):
    with pytest.raises(ParameterError) as caught:
        check_parameters(KNOWN, given)
    assert "looks like a secret" in str(caught.value) and "the environment, e.g. HF_TOKEN" in str(caught.value)
    assert TOKEN[3:] not in str(caught.value)
    assert "f" * 40 not in str(caught.value)


@pytest.mark.parametrize("items", [[TOKEN], [f"model={TOKEN}"], [f"model={TOKEN}", f"model={TOKEN}"], [f"{TOKEN}=3"]])
def test_a_token_on_the_command_line_is_refused_unrepeated(items):
    with pytest.raises(ParameterError, match="looks like a secret") as caught:
        parse_assignments(items)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("line", [f"x: str = '{TOKEN}'  # any", f"x = '{TOKEN}'", f"x: int = '{TOKEN}'",
                                  f"x = {{'api_key': '{TOKEN[3:]}'}}", f"api_key = ['{TOKEN[3:]}']"])  # fmt: skip
def test_a_token_as_a_notebooks_default_is_refused_unrepeated(tmp_path, line):
    with pytest.raises(ParameterError, match="looks like a secret") as caught:
        of_cell(tmp_path, line)
    assert TOKEN[3:] not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [{"revision": COMMIT}, {"model": f"/cache/snapshots/{COMMIT}"}, {"model": "Qwen/Qwen2-0.5B"}, {"model": "</search>"},
     {"model": "sk-learn"}, {"model": "https://huggingface.co/x/y"}, {"stops": ["</s>", "password"]},
     {"stops": {"eos_token": "</s>", "n": [1, None]}}]
)  # fmt: skip
def test_what_is_no_token_is_taken(given):
    assert check_parameters(KNOWN, given) == given


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cells": [{}]}', '{"cells": [1]}'])
def test_a_file_that_is_no_notebook_is_refused(text, tmp_path):
    path = tmp_path / "bad.ipynb"
    path.write_text(text)
    with pytest.raises(ParameterError, match=r"bad.ipynb: not a notebook of format 4"):
        notebook_parameters(path)
