#!/usr/bin/env bash
# A manifest as a Slurm array: one task a shard, one device a task.
#
#   sbatch examples/slurm_array.sh jobs.jsonl /shared/out -c streaming-720p
#
# What follows the output folder goes to `sanawm batch`. Submit the same line again after a failure
# or a time limit: done jobs are skipped and half-done ones go on (single tasks: --array=3,5).
#SBATCH --job-name=sanawm
#SBATCH --array=1-8
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@180   # three minutes before the limit: the block in hand is finished and kept
set -euo pipefail

SHARDS=8 # as many as --array has tasks; not SLURM_ARRAY_TASK_COUNT, which --array=3,5 changes

manifest=${1:?usage: slurm_array.sh MANIFEST OUTPUT_DIR [options of sanawm batch]}
output=${2:?usage: slurm_array.sh MANIFEST OUTPUT_DIR [options of sanawm batch]}
shift 2

# `exec`, so that the signal reaches sanawm itself.
exec sanawm batch "$manifest" --output-dir "$output" \
    --shard "${SLURM_ARRAY_TASK_ID:?this script is for sbatch}/$SHARDS" "$@"
