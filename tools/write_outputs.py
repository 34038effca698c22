"""Execute notebooks with their defaults and write them back with their outputs: `make notebooks`.

    python -m tools.write_outputs                      all
    python -m tools.write_outputs 02_grpo_custom_stops

A notebook says in its metadata of which code its outputs are; a test compares that with the code that stands there.
"""

import argparse
import base64
import hashlib
import html
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from PIL import Image

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
MOST_BYTES = 1_000_000
MOST_OF_A_PICTURE = 150_000
# As `DescribedFigure` shows itself.
_FIGURE = re.compile(
    r'<figure><img alt="(.*?)" src="data:image/png;base64,([^"]+)"[^>]*><figcaption>(.*?)</figcaption></figure>',
    re.DOTALL,
)
_AROUND = '<div class="foreign">'  # what a redacted page puts around an output
WIDGET = "application/vnd.jupyter.widget-view+json"


def code_hash(notebook) -> str:
    """SHA-256 over the sources of a notebook's code cells, in their order."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def with_outputs(notebook, executed):
    """A notebook with the outputs of its executed copy, which has one cell more: the parameters that were passed in.

    Raises:
        ValueError: the copy is of other code.
    """
    made = [cell for cell in executed.cells if cell.cell_type == "code"]
    made = [cell for cell in made if "injected-parameters" not in cell.metadata.get("tags", [])]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.source for cell in cells] != [cell.source for cell in made]:
        raise ValueError("the executed notebook has other code cells")
    for n, (cell, done) in enumerate(zip(cells, made, strict=True), 1):
        cell.execution_count = n
        kept = [_kept(output, n) for output in done.outputs if WIDGET not in output.get("data", {})]
        cell.outputs = [part for output in kept for part in with_pictures(output)]
    notebook.metadata["workbench"] = notebook.metadata.get("workbench", {}) | {"outputs_of": code_hash(notebook)}
    return notebook


def _kept(output, number: int):
    about = output.get("metadata", {})
    if alt := about.get("image/png", {}).get("alt"):  # of `display(figure, metadata=...)`; viewers show the text
        output["data"]["text/plain"] = f"Figure: {alt}"
    about.clear()
    if "execution_count" in output:
        output.execution_count = number
    return output


def with_pictures(output) -> list:
    """An output whose figures are image/png outputs of their own, which viewers that drop images inside HTML show too.

    The alt text is the picture's text/plain; what stood around the figure, its caption and data, stays HTML in its place.
    """
    page = output.get("data", {}).get("text/html", "")
    if not _FIGURE.search(page):
        return [output]
    if page.startswith(_AROUND) and page.endswith("</div>"):  # each part would hold half of it
        page = page.removeprefix(_AROUND).removesuffix("</div>")
    before, *parts = _FIGURE.split(page)  # then alt text, picture, caption and what follows, again and again
    outputs = _html(before)
    for alt, png, caption, after in zip(*[iter(parts)] * 4, strict=True):
        about = {"image/png": small(png), "text/plain": f"Figure: {html.unescape(alt)}"}
        outputs += [nbformat.v4.new_output("display_data", about), *_html(f"<p>{caption}</p>{after}")]
    return outputs


def small(png: str) -> str:
    """A picture in base64, in 256 colours where it would be larger than one that is committed may be."""
    picture = base64.b64decode(png)
    if len(picture) <= MOST_OF_A_PICTURE:
        return png
    made = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256).save(made, "PNG", optimize=True)
    return base64.b64encode(made.getvalue()).decode()


def _html(text: str) -> list:
    words = html.unescape(re.sub(r"<details>.*?</details>|<[^>]+>", " ", text, flags=re.DOTALL))
    about = {"text/html": text, "text/plain": " ".join(words.split())}
    return [nbformat.v4.new_output("display_data", about)] if text.strip() else []


def main() -> None:
    from tools.redacted_notebook import redacted_notebook
    from workbench.lab.reports.page import hider
    from workbench.runs import list_runs

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="notebooks; default all")
    parser.add_argument("--runs-dir", type=Path, help="take the newest finished run of each from here, execute none")
    args = parser.parse_args()
    names = args.names or sorted(path.stem for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    with tempfile.TemporaryDirectory() as folder:
        runs = args.runs_dir or Path(folder)
        if not args.runs_dir:
            for name in names:  # one after the other: 06 reads what the others left
                subprocess.run([sys.executable, "-m", "workbench", "run", "-q", name, "--runs-dir", str(runs)])
        problems = []
        for name in names:
            done = [run for run in list_runs(runs, name) if run.status["state"] == "done"]
            if not done:
                problems.append(f"{name}: no run of it is done")
                continue
            path, run = NOTEBOOKS / f"{name}.ipynb", done[-1]
            notebook = nbformat.read(path, as_version=4)
            executed = nbformat.read(run.path / "executed.ipynb", as_version=4)
            shown = nbformat.from_dict(redacted_notebook(executed, hider([run], True)))
            for cell, redacted in zip(executed.cells, shown.cells, strict=True):
                cell.outputs = redacted.get("outputs", [])
            try:
                text = nbformat.writes(with_outputs(notebook, executed))
            except ValueError as error:
                problems.append(f"{name}: {error}")
                continue
            if (size := len(text.encode())) > MOST_BYTES:
                problems.append(f"{name}: {size:,} bytes with its outputs, expected at most {MOST_BYTES:,}")
                continue
            path.write_text(text + "\n", encoding="utf-8")
            print(f"{name}: written, {size:,} bytes")
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
