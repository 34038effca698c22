"""OnlineDPO on vLLM refuses stop strings, because it switches off what finds them.

Cause: its SamplingParams have `detokenize=False` ("we don't need it", experimental/online_dpo/online_dpo_trainer.py:531 on
1.16.0), and vLLM looks for stop strings in the text.
Harm: `generation_kwargs={"stop": [...]}` ends in an error of vLLM about a field that the user did not set, after the engine
was started. Adding `"detokenize": True` helps.
Met by: use_vllm=True with `stop` in generation_kwargs (OnlineDPO).
Reported: not found.
Patch: detokenize if there are stop strings.
"""

import tempfile

import engine
import tiny
import vllm
from transformers import AutoModelForCausalLM

try:
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer
except ImportError as error:
    tiny.cannot_run(f"no OnlineDPO ({error})")

vllm.LLM.__init__ = lambda self, **_: None  # the sampling parameters are made behind it, and need no engine
own = tiny.tokenizer()
path = engine.folder(own)
options = {"max_new_tokens": 16, "max_length": 64, "missing_eos_penalty": 1.0, "generation_kwargs": {"stop": ["."]}}
args = OnlineDPOConfig(tempfile.mkdtemp(), **tiny.ONE_STEP, **engine.COLOCATE, **options)
models = [AutoModelForCausalLM.from_pretrained(path) for _ in range(2)]
data = {"train_dataset": tiny.prompts(), "processing_class": own}
should = "a trainer that stops at the strings"
try:
    trainer = OnlineDPOTrainer(models[0], ref_model=models[1], reward_funcs=tiny.parity, args=args, **data)
except Exception as error:
    if "detokenize" not in str(error):
        raise
    tiny.verdict(True, f"{type(error).__name__}: {' '.join(str(error).split())}", should)
params = trainer.generation_config
tiny.verdict(not params.detokenize, f"stop={params.stop}, detokenize={params.detokenize}", should)
