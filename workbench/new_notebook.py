"""A small notebook to start one's own from: parameters, one training, its curve, a result."""

import json
from pathlib import Path

from .errors import ParameterError
from .runs.run import check_notebook_name

CELLS = (
    ("markdown", "# {name}\nWhat do you want to know? Write the question, and what answer would surprise you."),
    (
        "parameters",
        "seed: int = 0  # of the training; 0..1000000\n"
        'out_dir: str = ""  # run folder; empty for a new one\n'
        "interactive: bool = True  # widgets (JupyterLab) or none (batch)\n"
        "steps: int = 20  # optimizer steps; 2..100000\n"
        "learning_rate: float = 3e-4  # of AdamW; 0..1",
    ),
    (
        "code",
        "import torch\n"
        "from datasets import Dataset\n"
        "from trl import GRPOConfig\n\n"
        "from workbench import GRPOTrainer, Result, length_reward, load_prompts, open_run, resolve_model, save_result\n"
        "from workbench import show_curves, show_results\n\n"
        'run = open_run("{name}", out_dir, {{"seed": seed, "steps": steps, "learning_rate": learning_rate}})',
    ),
    (
        "markdown",
        "## The training\nTRL's own arguments. `resolve_model` and `load_prompts` take a hub id or a folder in the place of "
        "`starter`,\nthe model of 0.65 million parameters that comes with the workbench.",
    ),
    (
        "code",
        "gpu = torch.cuda.is_available()\n"
        "args = GRPOConfig(\n"
        '    str(run.path / "trainer"), seed=seed, max_steps=steps, learning_rate=learning_rate, logging_steps=1,\n'
        "    per_device_train_batch_size=32, num_generations=8, max_completion_length=32, gradient_checkpointing=False,\n"
        '    use_cpu=not gpu, bf16=gpu, report_to="none", save_strategy="no",\n'
        ")\n"
        'model, prompts = resolve_model("starter"), Dataset.from_list(load_prompts("starter"))\n'
        "trainer = GRPOTrainer(model, length_reward(20), args, train_dataset=prompts, record_dir=run.path)\n"
        "trainer.train();",
    ),
    ("markdown", "## Results"),
    ("code", 'show_curves({{"reward": [run]}}, title="Reward: minus the distance from 20 characters")'),
    (
        "code",
        'reward = run.metrics["reward"]\n'
        "first, last = reward.head(5).mean(), reward.tail(5).mean()\n"
        'says = f"The reward goes from {{first:.1f}} to {{last:.1f}} (means of 5 steps at both ends, one seed)"\n'
        'results = [Result(says, None, "of one seed the scatter is unknown: sweep over seeds")]\n'
        "show_results(results)",
    ),
    ("code", 'save_result(run, results, {{"reward, last 5 steps": last}})'),
)


def write_notebook(name: str, folder: Path) -> Path:
    """Write `<name>.ipynb` into a folder.

    Args:
        name: of the notebook and of the folder of its runs.
        folder: is made where it is missing.

    Raises:
        ParameterError: there is a file of this name, or it cannot name a folder.
    """
    name = name.removesuffix(".ipynb")
    check_notebook_name(name)
    path = folder / f"{name}.ipynb"
    if path.exists():
        raise ParameterError(f"{path}: is there already; choose another name, or delete it")
    cells = []
    for number, (kind, source) in enumerate(CELLS):
        cell: dict = {"cell_type": "markdown" if kind == "markdown" else "code", "id": f"cell-{number}", "metadata": {}}
        if kind != "markdown":
            cell |= {"execution_count": None, "outputs": []}
        if kind == "parameters":
            cell["metadata"] = {"tags": ["parameters"]}
        text = source.format(name=name) if kind != "parameters" else source
        cells.append(cell | {"source": text.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    folder.mkdir(parents=True, exist_ok=True)
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")
    return path
