import base64
import json

import nbformat.v4 as v4
import pytest
from conftest import write_run
from report_samples import METRICS, Elements, picture

from workbench.lab.reports import build_report
from workbench.lab.reports import notebook as module
from workbench.lab.reports.notebook import Notebook, read_notebook


def read(*cells) -> Notebook:
    notebook = Notebook(str)
    notebook.read(json.loads(json.dumps(v4.new_notebook(cells=cells))))
    return notebook


def stream(text: str, name: str = "stdout"):
    return v4.new_output("stream", name=name, text=text)


def display(data: dict):
    return v4.new_output("display_data", data)


def cell_of(*outputs):
    return v4.new_code_cell("x", outputs=list(outputs))


def shown(*outputs) -> list[str]:
    """The blocks that the outputs of one cell become."""
    return read(cell_of(*outputs)).sections[0].blocks[1:]


def executed(run, *outputs) -> str:
    """The report of a run whose notebook has one cell with these outputs."""
    (run.path / "executed.ipynb").write_text(json.dumps(v4.new_notebook(cells=[cell_of(*outputs)])))
    return build_report(run).read_text()


# --- cells ---------------------------------------------------------------------------------------------------------


def test_headings_of_two_levels_give_title_and_nonempty_sections():
    notebook = read(v4.new_markdown_cell("# T\nfirst\n## A\nsecond\n## Empty\n## B\n- third"), v4.new_code_cell("x"))
    assert notebook.title == "T"
    assert [section.title for section in notebook.sections] == ["", "A", "B"]
    assert notebook.sections[1].blocks == ['<div class="foreign"><p>second</p>\n</div>']
    assert [len(section.blocks) for section in notebook.sections] == [1, 1, 2]


def test_a_comment_in_a_block_of_code_is_no_heading():
    for mark in ("```", "~~~~"):
        fence = f"How to run:\n\n{mark}bash\n# install first\npip install thing\n# then run\nthing --go\n{mark}\nThat is all."
        notebook = read(v4.new_markdown_cell(fence), v4.new_markdown_cell("# Title"))
        assert notebook.title == "Title" and len(notebook.sections) == 1
        (block,) = notebook.sections[0].blocks
        assert block.count("<pre>") == 1 and "# install first\npip install thing\n# then run" in block
        assert block.endswith("<p>That is all.</p>\n</div>")


def test_the_parameters_cell_gives_parameters_and_no_code_block():
    cell = v4.new_code_cell("seed: int = 3  # of all; 0..9", metadata={"tags": ["parameters"]})
    notebook = read(cell)
    assert (notebook.parameters["seed"].default, notebook.parameters["seed"].help) == (3, "of all")
    assert notebook.sections == []
    cell.source = "seed = ("  # no Python
    assert read(cell).parameters == {}


def test_neighbouring_pieces_of_a_stream_are_one_output():
    blocks = shown(stream("1\n", "a"), stream(["2\n"], "a"), stream("3", "b"), stream("4", "a"))
    assert [block.partition('ltr">')[2] for block in blocks] == ["1\n2</pre>", "3</pre>", "4</pre>"]


def test_cells_and_controls_are_counted_papermills_banner_is_not():
    view = v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "x"})
    banner = v4.new_markdown_cell("an error", metadata={"tags": ["papermill-error-cell-tag"]})
    notebook = read(banner, v4.new_code_cell("x", outputs=[view], execution_count=1), v4.new_code_cell("y"))
    assert (notebook.cells, notebook.executed, notebook.controls) == (2, 1, 1)
    assert "works in JupyterLab only" in notebook.sections[0].blocks[1]


def test_a_page_says_what_it_cannot_run_and_shows_formulas():
    def shown(**data):
        notebook = read(v4.new_code_cell("x", outputs=[v4.new_output("display_data", data=data)]))
        return notebook.controls, notebook.sections[0].blocks[-1]

    plain = {"text/plain": "<IPython.core.display.HTML object>"}
    for html in ("<div><script>draw()</script><div id='a'></div></div>", "<iframe src='https://x.org'></iframe>"):
        assert shown(**plain, **{"text/html": html}) == (
            1,
            shown(**{"application/vnd.jupyter.widget-view+json": {}})[1],
        )
    for html in ("<b>text</b><script>draw()</script>", "<i></i>"):
        assert shown(**plain, **{"text/html": html})[0] == 0
    assert "alpha" in shown(**plain, **{"text/latex": r"$\alpha$"})[1]
    assert "&quot;answer&quot;: 42" in shown(**plain, **{"application/json": {"answer": 42}})[1]


def test_the_failure_is_the_first_cell_with_an_error():
    errors = [v4.new_output("error", ename="E", evalue=text, traceback=[]) for text in ("one", "two")]
    notebook = read(*(v4.new_code_cell(e.evalue.upper(), outputs=[e]) for e in errors))
    assert "ONE" in notebook.failure
    assert "E: one" in notebook.failure
    assert "two" not in notebook.failure


def test_a_going_run_is_read_from_the_executing_notebook(tmp_path):
    run = write_run(tmp_path)
    assert read_notebook(run) is None
    (run.path / "executing.ipynb").write_text('{"cells": [1]}')
    assert read_notebook(run) == {"cells": [1]}
    (run.path / "executed.ipynb").write_text('{"cells": [2]}')  # of an execution before
    assert read_notebook(run) == {"cells": [1]}
    (run.path / "executing.ipynb").unlink()
    assert read_notebook(run) == {"cells": [2]}
    (run.path / "executing.ipynb").write_text('["no notebook"]')
    assert read_notebook(run) == {"cells": [2]}
    (run.path / "executed.ipynb").write_text('["no notebook"]')


# --- figures -------------------------------------------------------------------------------------------------------


def test_figures_stay_in_their_places_and_the_first_is_the_cards(hostile_page):
    assert hostile_page.split('<h2 id="notebook"')[1].count("<img ") == 3
    html = {"text/html": '<p>before</p><figure><img alt="a" src="data:image/png;base64,QUJD"></figure>'}
    figure, image = cell_of(display(html)), cell_of(display({"image/png": "WFla"}))
    notebook = read(figure, image)
    assert notebook.figure == "data:image/png;base64,QUJD"
    assert [block.count("<img") for block in notebook.sections[0].blocks] == [0, 1, 0, 1]
    assert read(image, figure).figure == "data:image/png;base64,WFla"


# --- noise ---------------------------------------------------------------------------------------------------------


def test_a_progress_bar_leaves_nothing_and_splits_no_log():
    bar = "Loading weights:   0%|          | 0/26 [00:00<?, ?it/s]"
    widget = display({"application/vnd.jupyter.widget-view+json": {}, "text/plain": bar})
    outputs = [stream("one\n"), widget, stream(f"\r{bar}\n", "stderr"), stream("two")]
    assert read(cell_of(*outputs)).controls == 0
    assert shown(*outputs) == ['<pre class="" dir="ltr">one\ntwo</pre>', ""]


@pytest.mark.parametrize("line", ["[12:30:01, INFO] loaded", "[1:2] is a slice", "took [00:05] 3.1s/it"])
def test_a_line_that_only_looks_like_a_progress_bar_stays(line):
    assert line in shown(stream(line))[0]


def test_long_logs_and_library_output_are_folded_with_line_count():
    log = "".join(f"step {n}/80\n" for n in range(1, 81))
    out, err = shown(stream(log), stream("Warning: NUMA\n", "stderr"), stream("seed 0: trained\n"))
    assert out.startswith('<details class="log"><summary>81 lines of output, the last: seed 0: trained</summary>')
    assert "step 80/80" in out
    assert err.startswith('<details class="log"><summary>1 line on stderr</summary>')
    assert "<details" not in shown(stream("a\nb\n"))[0]


def test_the_saved_path_is_not_repeated():
    path, other = (v4.new_output("execute_result", {"text/plain": t}) for t in ("PosixPath('/a/result.json')", "{}"))
    assert (shown(path), len(shown(other))) == ([], 1)


def test_markdown_that_a_cell_shows_is_text_of_the_page():
    markdown = {"text/markdown": "Ends at **0.75**<script>x</script>"}
    (block,) = shown(display(markdown | {"text/plain": "<IPython.core.display.Markdown object>"}))
    assert block == '<div class="foreign"><p>Ends at <strong>0.75</strong></p>\n</div>'


def test_every_figure_has_alt_text_and_its_data_as_a_table(hostile_page):
    elements = Elements(hostile_page)
    images = [a for tag, a in zip(elements.tags, elements.attributes, strict=True) if tag == "img"]
    assert len(images) == 3
    assert all(image["alt"].strip() for image in images)
    assert "reward [as logged] goes from" in images[0]["alt"]
    assert "Data of this figure" in hostile_page


def test_an_overwritten_line_of_a_terminal_is_shown_as_it_ended():
    text = "\x1b[1m10%\x1b[0m\r50%\r100%\ndone\r\n"
    assert '<pre class="stderr" dir="ltr">100%\ndone</pre></details>' in shown(stream(text, "stderr"))[0]


# --- size ----------------------------------------------------------------------------------------------------------


def test_each_output_has_a_limit_and_what_is_cut_is_told(tmp_path):
    pictures = [display({"image/png": base64.b64encode(data).decode()}) for data in (bytes(2_000_000), picture())]
    table = display({"text/html": f"<table>{'<tr><td>1<td>2</tr>' * 30_000}</table>"})
    page = executed(write_run(tmp_path, metrics=METRICS), *pictures, stream("<&>" * 400_000), table)
    assert len(page) < 500_000
    assert page.count("<img ") == 1
    assert "[image of 2,666,690 characters left out; all of it is in executed.ipynb:" in page
    assert "1,180,000 of 1,200,000 characters left out; all of it is in executed.ipynb" in page
    assert "510,015 of 570,015 characters left out; all of it is in executed.ipynb." in page


def test_a_notebook_that_is_none_or_too_large_is_not_parsed(tmp_path, monkeypatch):
    run = write_run(tmp_path)
    (run.path / "executed.ipynb").write_text('{"cells": [3, {"cell_type": "code", "outputs": [1]}, {"metadata": 0}]}')
    assert "Cells of an unknown type that this page leaves out: 3." in build_report(run).read_text()
    monkeypatch.setattr(module, "_MOST_READ", 10)
    assert read_notebook(run) is None


def test_an_output_cannot_choose_a_style_of_the_page():
    assert 'class="good"' not in "".join(shown(stream("all 12 checks hold", "good")))
