#!/bin/bash
# The documented GRPO example on two machines without a scheduler. Start it on both, with the rank of each:
#
#     HEAD=10.0.0.1 GPUS=8 examples/two_nodes.sh 0     # on the first machine, whose address HEAD is
#     HEAD=10.0.0.1 GPUS=8 examples/two_nodes.sh 1     # on the second
#
# Both reach OUT, on a file system that they share; started again, the training goes on from its last checkpoint. Each process
# has a vLLM engine of its own on its GPU. It has not run on GPUs; several_nodes.sbatch is the same on Slurm, with a server.
set -euo pipefail

RANK=${1:?expected the rank of this machine: 0 on the first, 1 on the second}
: "${HEAD:?expected the address of the first machine in HEAD}"
OUT=${OUT:-runs/05_grpo_docs_example/two-nodes}
MODEL=${MODEL:-Qwen/Qwen2-0.5B-Instruct}
DATASET=${DATASET:-trl-lib/tldr}
BACKEND=${BACKEND:-vllm}
GPUS=${GPUS:-$(nvidia-smi -L | wc -l)} # of each machine

exec accelerate launch --multi_gpu --num_machines 2 --num_processes $((2 * GPUS)) \
    --machine_rank "$RANK" --main_process_ip "$HEAD" --main_process_port "${PORT:-29500}" \
    -m workbench.experiments --out "$OUT" -p "model=$MODEL" -p "dataset=$DATASET" -p "backend=$BACKEND"
