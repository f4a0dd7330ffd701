#!/usr/bin/env bash
# Runs benchmarks/measure/gpu.py with this checkout's comap, within the minutes of one command:
#
#     bash benchmarks/measure/gpu.sh MODEL OUT [options of gpu.py]
#
# MODEL is the folder of SmolLM2-135M-Instruct. OUT gets gpu.json, gpu.log and the profiles. The same command
# again goes on with the jobs that are not done: results stay in memory (STATE) between commands.
# The machine needs torch with CUDA, transformers, TRL, peft, vLLM and gymnasium, not comap itself.
#
# On a machine that is lent for 15 minutes and takes files in parts, each line is one command:
#     cp PART /dev/shm/...                                  for each part of the packed environment
#     bash .gpus/unpack.sh && . .gpus/env.sh && MINUTES=8 bash benchmarks/measure/gpu.sh "$SMOLLM2" "$OUT"
#     . .gpus/env.sh && MINUTES=4 bash benchmarks/measure/gpu.sh "$SMOLLM2" "$OUT"
set -u
model=$1
out=$2
shift 2
root=$(cd "$(dirname "$0")/../.." && pwd)
state=${STATE:-/dev/shm/comap-gpu}
mkdir -p "$state/packages" "$out"

# This checkout is the package comap, whatever the environment has under that name.
ln -sfn "$root" "$state/packages/comap"
ln -sfn "$root/integrations/comap_envs" "$state/packages/comap_envs"
export PYTHONPATH="$state/packages${PYTHONPATH:+:$PYTHONPATH}" PROFILES="$state"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=WARNING
: "${COMMIT:=$(git -C "$root" describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null)}"
export COMMIT

# Whatever happens, what there is comes back.
trap 'cp "$state"/gpu.json "$state"/gpu.log "$state"/profile-*.txt "$out" 2>/dev/null' EXIT
"${PYTHON:-python3}" "$root/benchmarks/measure/gpu.py" "$model" --out "$state/gpu.json" \
    --minutes "${MINUTES:-9}" "$@" 2>&1 | tee -a "$state/gpu.log"
