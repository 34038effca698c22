import base64
import json

import nbformat.v4 as v4
import pytest
from conftest import write_run
from report_samples import METRICS, Elements, picture

from workbench.reports import build_report
from workbench.reports import notebook as module
from workbench.reports.notebook import Notebook, read_notebook


def read(*cells) -> Notebook:
    notebook = Notebook(str)
    notebook.read(json.loads(json.dumps(v4.new_notebook(cells=cells))))
    return notebook


# --- cells ---------------------------------------------------------------------------------------------------------


def test_headings_of_two_levels_give_the_title_and_the_sections_that_are_not_empty():
    notebook = read(v4.new_markdown_cell("# T\nfirst\n## A\nsecond\n## Empty\n## B\n- third"), v4.new_code_cell("x"))
    assert notebook.title == "T"
    assert [section.title for section in notebook.sections] == ["", "A", "B"]
    assert notebook.sections[1].blocks == ['<div class="foreign"><p>second</p>\n</div>']
    assert [len(section.blocks) for section in notebook.sections] == [1, 1, 2]


def test_the_parameters_cell_gives_the_parameters_and_no_block_of_code():
    cell = v4.new_code_cell("seed: int = 3  # of all; 0..9", metadata={"tags": ["parameters"]})
    notebook = read(cell)
    assert (notebook.parameters["seed"].default, notebook.parameters["seed"].help) == (3, "of all")
    assert notebook.sections == []
    cell.source = "seed = ("  # no Python
    assert read(cell).parameters == {}


def test_neighbouring_pieces_of_a_stream_are_one_output():
    pieces = [
        v4.new_output("stream", name=n, text=t) for n, t in (("a", "1\n"), ("a", ["2\n"]), ("b", "3"), ("a", "4"))
    ]
    blocks = read(v4.new_code_cell("x", outputs=pieces)).sections[0].blocks
    assert [block.partition('ltr">')[2] for block in blocks[1:]] == ["1\n2</pre>", "3</pre>", "4</pre>"]


def test_cells_that_ran_and_controls_are_counted_and_papermills_banner_is_not_a_cell():
    view = v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "x"})
    banner = v4.new_markdown_cell("an error", metadata={"tags": ["papermill-error-cell-tag"]})
    notebook = read(banner, v4.new_code_cell("x", outputs=[view], execution_count=1), v4.new_code_cell("y"))
    assert (notebook.cells, notebook.executed, notebook.controls) == (2, 1, 1)
    assert "works in JupyterLab only" in notebook.sections[0].blocks[1]


def test_the_failure_is_the_first_cell_with_an_error():
    errors = [v4.new_output("error", ename="E", evalue=text, traceback=[]) for text in ("one", "two")]
    notebook = read(*(v4.new_code_cell(e.evalue.upper(), outputs=[e]) for e in errors))
    assert "ONE" in notebook.failure
    assert "E: one" in notebook.failure
    assert "two" not in notebook.failure


def test_a_run_that_is_going_on_is_read_from_the_notebook_that_is_executing(tmp_path):
    run = write_run(tmp_path)
    assert read_notebook(run) is None
    (run.path / "executing.ipynb").write_text('{"cells": [1]}')
    assert read_notebook(run) == {"cells": [1]}
    (run.path / "executed.ipynb").write_text('{"cells": [2]}')
    assert read_notebook(run) == {"cells": [2]}
    (run.path / "executed.ipynb").write_text('["no notebook"]')
    assert read_notebook(run) == {"cells": [1]}


# --- figures -------------------------------------------------------------------------------------------------------


def test_figures_stay_where_the_notebook_has_them_and_the_first_is_the_card_s(hostile_page):
    assert hostile_page.split('<h2 id="notebook"')[1].count("<img ") == 3

    def cell(data):
        return v4.new_code_cell("x", outputs=[v4.new_output("display_data", data)])

    html = {"text/html": '<p>before</p><figure><img alt="a" src="data:image/png;base64,QUJD"></figure>'}
    notebook = read(cell(html), cell({"image/png": "WFla"}))
    assert notebook.figure == "data:image/png;base64,QUJD"
    assert [block.count("<img") for block in notebook.sections[0].blocks] == [0, 1, 0, 1]
    assert read(cell({"image/png": "WFla"}), cell(html)).figure == "data:image/png;base64,WFla"


# --- noise ---------------------------------------------------------------------------------------------------------


def stream(text: str, name: str = "stdout"):
    return v4.new_output("stream", name=name, text=text)


def test_a_progress_bar_leaves_nothing_and_does_not_split_the_log_around_it():
    bar = "Loading weights:   0%|          | 0/26 [00:00<?, ?it/s]"
    widget = v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": bar})
    notebook = read(
        v4.new_code_cell("x", outputs=[stream("one\n"), widget, stream(f"\r{bar}\n", "stderr"), stream("two")])
    )
    assert notebook.controls == 0
    assert notebook.sections[0].blocks[1:] == ['<pre class="" dir="ltr">one\ntwo</pre>', ""]


@pytest.mark.parametrize("line", ["[12:30:01, INFO] loaded", "[1:2] is a slice", "took [00:05] 3.1s/it"])
def test_a_line_that_only_looks_like_a_progress_bar_stays(line):
    assert line in read(v4.new_code_cell("x", outputs=[stream(line)])).sections[0].blocks[1]


def test_a_long_log_and_what_libraries_say_are_folded_with_their_number_of_lines():
    log = "".join(f"step {n}/80\n" for n in range(1, 81))
    cell = v4.new_code_cell(
        "x", outputs=[stream(log), stream("Warning: NUMA\n", "stderr"), stream("seed 0: trained\n")]
    )
    blocks = read(cell).sections[0].blocks
    assert blocks[1].startswith('<details class="log"><summary>81 lines of output, the last: seed 0: trained</summary>')
    assert "step 80/80" in blocks[1]
    assert blocks[2].startswith('<details class="log"><summary>1 line on stderr</summary>')
    assert "<details" not in read(v4.new_code_cell("x", outputs=[stream("a\nb\n")])).sections[0].blocks[1]


def test_a_secret_in_the_last_line_of_a_log_is_hidden_in_the_line_that_folds_it(tmp_path):
    run = write_run(tmp_path)
    (run.path / "executed.ipynb").write_text(cells_of([stream("x\n" * 20 + "HF_TOKEN=S3cretS3cret")]))
    page = build_report(run).read_text()
    assert "the last: HF_TOKEN=[token]" in page
    assert "S3cret" not in page


def test_the_saved_path_is_not_repeated():
    def result(text):
        outputs = [v4.new_output("execute_result", {"text/plain": text})]
        return read(v4.new_code_cell("x", outputs=outputs)).sections[0].blocks[1:]

    assert result("PosixPath('/a/result.json')") == []
    assert result("{'a': True}") != []


def test_markdown_that_a_cell_shows_is_text_of_the_page():
    data = {
        "text/markdown": "Ends at **0.75**<script>x</script>",
        "text/plain": "<IPython.core.display.Markdown object>",
    }
    blocks = read(v4.new_code_cell("x", outputs=[v4.new_output("display_data", data)])).sections[0].blocks
    assert blocks[1] == '<div class="foreign"><p>Ends at <strong>0.75</strong></p>\n</div>'


def test_every_figure_has_alt_text_and_its_data_as_a_table(hostile_page):
    elements = Elements(hostile_page)
    images = [a for tag, a in zip(elements.tags, elements.attributes, strict=True) if tag == "img"]
    assert len(images) == 3
    assert all(image["alt"].strip() for image in images)
    assert "reward [as logged] rises from" in images[0]["alt"]
    assert "Data of this figure" in hostile_page


def test_an_overwritten_line_of_a_terminal_is_shown_as_it_ended(tmp_path):
    run = write_run(tmp_path)
    text = "\x1b[1m10%\x1b[0m\r50%\r100%\ndone\r\n"
    cell = v4.new_code_cell("x", outputs=[v4.new_output("stream", name="stderr", text=text)])
    (run.path / "executed.ipynb").write_text(json.dumps(v4.new_notebook(cells=[cell])))
    assert '<pre class="stderr" dir="ltr">100%\ndone</pre></details>' in build_report(run).read_text()


# --- size ----------------------------------------------------------------------------------------------------------


def cells_of(outputs: list) -> str:
    return json.dumps(v4.new_notebook(cells=[v4.new_code_cell("x", outputs=outputs)]))


def test_each_output_has_a_limit_and_what_is_cut_is_told(tmp_path):
    run = write_run(tmp_path, metrics=METRICS)
    large = base64.b64encode(bytes(2_000_000)).decode()
    outputs = [
        v4.new_output("display_data", {"image/png": data}) for data in (large, base64.b64encode(picture()).decode())
    ]
    outputs.append(v4.new_output("stream", name="s", text="<&>" * 400_000))
    outputs.append(v4.new_output("display_data", {"text/html": f"<table>{'<tr><td>1<td>2</tr>' * 30_000}</table>"}))
    (run.path / "executed.ipynb").write_text(cells_of(outputs))
    page = build_report(run).read_text()
    assert len(page) < 500_000
    assert page.count("<img ") == 1
    assert "[image of 2,666,690 characters left out; all of it is in executed.ipynb:" in page
    assert "1,180,000 of 1,200,000 characters left out; all of it is in executed.ipynb" in page
    assert "510,015 of 570,015 characters left out; all of it is in executed.ipynb." in page


def test_a_notebook_that_is_none_or_too_large_is_not_parsed(tmp_path, monkeypatch):
    run = write_run(tmp_path)
    (run.path / "executed.ipynb").write_text('{"cells": [3, {"cell_type": "code", "outputs": [1]}, {"metadata": 0}]}')
    assert "Cells that no notebook of nbformat 4 has, left out: 3." in build_report(run).read_text()
    monkeypatch.setattr(module, "_MOST_READ", 10)
    assert read_notebook(run) is None


def test_an_output_cannot_choose_a_style_of_the_page():
    output = v4.new_output("stream", name="good", text="all 12 checks hold")
    blocks = read(v4.new_code_cell("x", outputs=[output])).sections[0].blocks
    assert 'class="good"' not in "".join(blocks)
