"""What padding does to a real model's log-probs: `padding_report` on gemma-3-270m, its sliding windows included.

    python -m benchmarks.real_weights.padding

Short texts in fp32 and bf16 with both kernels, then texts beyond the window of 512 tokens.
"""

from benchmarks.real_weights.fetch_gemma import TEXT
from benchmarks.record import Results, gemma_folder, load, need_room, parser, peak_gib, run_main
from workbench.diagnostics.padding_report import CONTROL, padding_report

TEXTS = [
    "Water boils at one hundred degrees.",
    "def mean(values):\n    return sum(values) / len(values)\n",
    TEXT[:180],
    "Yes.",
]


def report_of(model, tokenizer, texts, **options) -> dict:
    """The numbers of a report that the page names."""
    report = padding_report(model, tokenizer, texts, **options)
    print(report.verdict, flush=True)
    found = {"verdict": report.verdict, "kind": report.kind, "tokens": [len(tokenizer(t)["input_ids"]) for t in texts]}
    for dtype in report.rows["dtype"].unique():
        implicit, explicit = (report.worst(dtype, positions=positions) for positions in ("implicit", "explicit"))
        found[dtype] = {"implicit": implicit, "explicit": explicit, "control": report.worst(dtype, layout=CONTROL)}
        padded = report.rows.query("dtype == @dtype and layout == 'padded'")
        found[dtype]["share of ratios outside [0.9, 1.1]"] = padded["share of ratios outside [0.9, 1.1]"].max()
        found[dtype]["share of top-1 flips"] = padded["share of top-1 flips"].max()
    across = report.rows[report.rows["layout"].str.startswith("unpadded, against")]
    found["against fp32"] = across.set_index(["dtype", "attention"])["max |Δ log-prob|"].rename(" ".join).to_dict()
    return found | {"notes": list(report.notes), "peak GiB": round(peak_gib(), 2)}


def main() -> None:
    args = parser(__doc__).parse_args()
    results = Results("real_weights.padding", args.out)
    folder = gemma_folder()
    need_room("the report", memory=4)
    model, tokenizer = load(folder)
    kernels = ("eager", "sdpa", "flash_attention_2")
    results.part(
        "short texts", lambda: report_of(model, tokenizer, TEXTS, dtypes=("float32", "bfloat16"), attentions=kernels)
    )
    window = model.config.sliding_window
    long = tokenizer.decode(tokenizer((TEXT + "\n") * 12)["input_ids"][1 : window + 40])
    beyond = [long, TEXTS[0]]
    results.part(
        "beyond the sliding window",
        lambda: {"window": window, **report_of(model, tokenizer, beyond, dtypes=("float32",), attentions=("sdpa",))},
    )


if __name__ == "__main__":
    run_main(main)
