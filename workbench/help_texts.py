"""What `workbench --help` says of each command."""

from typing import NamedTuple


class Help(NamedTuple):
    """A command in a few words, what it is for in sentences, and the arguments of an example."""

    short: str
    purpose: str
    example: str


COMMANDS = {
    "run": Help(
        "run notebooks, each in a run folder of its own",
        "Runs notebooks with the parameters given, each in a new run folder with its log, metrics, completions and report.",
        "05_grpo_docs_example -p steps=80 -p seed=1",
    ),
    "sweep": Help(
        "run a notebook over a grid of parameters and compare the runs",
        "Runs a notebook once for each point of a grid and writes a page that compares the runs. Called again, it skips "
        "what is done and goes on with what was interrupted.",
        "05_grpo_docs_example -p seed=0..4 --jobs 2",
    ),
    "status": Help(
        "what every run does now, or how it ended",
        "Shows each run in a line: its state, step and place, or its result and the checks that fail.",
        "05_grpo_docs_example",
    ),
    "logs": Help(
        "what a run's notebook printed",
        "Prints the log of a run: what its notebook and the training in it wrote, also while it runs.",
        "last --follow",
    ),
    "cancel": Help(
        "end runs; a training stops after its step and can be resumed",
        "Ends runs. A training gets time to finish its step and writes a checkpoint, from which "
        "`workbench run NOTEBOOK --resume RUN` goes on.",
        "last",
    ),
    "list": Help(
        "notebooks and runs; with a notebook, its parameters",
        "Names the notebooks and the runs. With a notebook: its parameters, with default, allowed values and meaning.",
        "05_grpo_docs_example",
    ),
    "notebooks": Help(
        "copy the notebooks out, to edit them",
        "Copies the notebooks into a folder, to be read and changed there. The other commands look into notebooks/ first.",
        "notebooks",
    ),
    "new": Help(
        "write a small notebook to start one's own from",
        "Writes a notebook that runs at once: parameters, one training, its curve, a result. Change it in JupyterLab; "
        "`workbench run NAME.ipynb` and `workbench sweep` take it like the others.",
        "my_question",
    ),
    "report": Help(
        "build the HTML reports and their index",
        "Builds the report of each run again, with a page of all its completions, and an index of them: pages that open "
        "without a network. Of a folder that stock TRL wrote, the page of completions. With --redact, copies to share.",
        "--redact",
    ),
    "claims": Help(
        "every claim of the articles with what was measured here",
        "Lists the claims of the articles, each with what the runs here say: confirmed, refuted, inconclusive or not tested.",
        "--markdown",
    ),
    "audit": Help(
        "find out what is wrong with a training from its log",
        "Checks the log of any RL training against itself, names each fault with its cause and a fix, and says what the log "
        "cannot show. Exit code 0: no problem, 1: problems, 2: unusable input.",
        "outputs/checkpoint-500 --stop '</answer>'",
    ),
    "doctor": Help(
        "check the environment, or which known defects of TRL some settings meet",
        "Compares what is installed with what the workbench takes, and says which back ends can "
        "run here. With --args FILE instead: which known defects of a release of TRL these settings meet. The exit code "
        "is 1 where something is wrong, or a defect is met.",
        "--trl 1.8.0 --args grpo.yaml",
    ),
}
