#!/usr/bin/env bash
# One run on 1, 2, 4 and 8 GPUs of this machine: how fast, in how much memory, and whether with the same bytes; beside PyTorch.
#
#   FT=flow-train FOLDER=full-size-folder OUT=out bash bench/scaling.sh [PART ...]
#
# FT is the program (built with `--features cuda`); FOLDER a diffusers folder of SD3.5 medium's sizes
# (`cargo run --release -p flow-pipeline --example full_size_folder -- SMALL FOLDER sd35-medium`). Rows go to $OUT/table.txt as soon as they are
# known, and what programs say to $OUT/NAME.log. PyTorch and torchrun are those of `python3`.
#
# Parts, in the order in which they are worth something, each with its own limit of time:
#   lora     GRPO of a LoRA, 16 pictures a rank        dit     GRPO of all weights of DiT-XL's size, 128 pictures a rank
#   peers    the first in PyTorch under torchrun       bytes   the same pictures on 1, 2 and 4 ranks: metrics and weights
#   killed   one rank killed, and half as many ranks go on
#   sharded  `dit` in PyTorch: DistributedDataParallel on 1, 2, … ranks, and FSDP2 on all
# LIMIT_S (400): no part begins later than that. ALONE=1: no two runs at the same time; otherwise those of fewer ranks than there are cards
# run beside each other, on cards of their own.
set -u
cd "$(dirname "$0")/.." || exit 1
: "${FT:?the program flow-train}" "${FOLDER:?a diffusers folder of full size}" "${OUT:?the folder of results}"
export FT OUT FOLDER_OF_RUNS="${FOLDER_OF_RUNS:-/dev/shm/w}" NCCL_NVLS_ENABLE=0
GPUS="${GPUS:-$(nvidia-smi -L | wc -l)}"
LIMIT_S="${LIMIT_S:-400}"
DIT="$FOLDER_OF_RUNS/dit-xl.safetensors"
mkdir -p "$FOLDER_OF_RUNS/runs" "$OUT"

# run LIMIT_S NAME RANKS FIRST_CARD PICTURES WHAT… ; WHAT is `run` or `peer`, its options, `--` and arguments.
run() {
    local limit=$1 name=$2 ranks=$3 first=$4 pictures=$5 what=$6
    shift 6
    timeout --kill-after=10 "$limit" python3 bench/scaling_run.py "$what" "$name" --ranks "$ranks" --pictures "$pictures" \
        --cards "$(seq -s, "$first" $((first + ranks - 1)))" "$@"
    local code=$?
    if [ $code -ge 124 ]; then echo "| $name | $ranks | cut after $limit s |" | tee -a "$OUT/table.txt"; fi
    return $code
}

# Calls `$1 RANKS FIRST_CARD`: for every power of two below the number of cards at the same time, then for all cards.
each_size() {
    local one=$1 ranks=1 first=0
    while [ $((2 * ranks)) -le "$GPUS" ]; do
        if [ -n "${ALONE:-}" ]; then "$one" $ranks 0; else "$one" $ranks $first & fi
        first=$((first + ranks))
        ranks=$((2 * ranks))
    done
    wait
    "$one" $ranks 0
}

largest() {
    local ranks=1
    while [ $((2 * ranks)) -le "$GPUS" ]; do ranks=$((2 * ranks)); done
    echo $ranks
}

# The arguments of a run of `$1` prompts and `$2` iterations, in the array WORDS; more after them.
lora_words() {
    WORDS=(configs/sd35-medium-grpo.toml --quiet --set "model.path=$FOLDER" --set "sampling.prompts_per_step=$1" --set "run.steps=$2"
        --set sampling.group_size=8 --set optimizer.gradient_accumulation=0 --set evaluation.every=0 --set checkpoints.every=0
        --set distributed.check_replicas_every=1 "${@:3}")
}

dit_words() {
    WORDS=(configs/shapes-grpo-h100.toml --quiet --set "model.weights=$DIT" --set "sampling.prompts_per_step=$1" --set "run.steps=$2"
        --set model.dit.patch=4 --set model.dit.hidden=1152 --set model.dit.layers=28 --set model.dit.heads=16
        --set sampling.micro_batch=64 --set evaluation.every=0 --set checkpoints.every=0 --set acceleration.strict=false
        --set distributed.check_replicas_every=0 "${@:3}")
}

# Weights of DiT-XL's size: one step of pretraining, on the last card.
dit_weights() {
    [ -e "$DIT" ] && return
    CUDA_VISIBLE_DEVICES=$((GPUS - 1)) timeout 90 "$FT" pretrain configs/shapes-grpo-h100.toml --quiet --set model.dit.patch=4 \
        --set model.dit.hidden=1152 --set model.dit.layers=28 --set model.dit.heads=16 --set pretrain.steps=1 --set pretrain.warmup=0 \
        --set "pretrain.output=$DIT" >"$OUT/dit-weights.log" 2>&1
}

lora_of() {
    lora_words $((2 * $1)) 5
    run 110 "lora-weak-$1" "$1" "$2" $((16 * $1)) run -- "${WORDS[@]}"
}

dit_of() {
    dit_words $((8 * $1)) 6
    run 80 "dit-weak-$1" "$1" "$2" $((128 * $1)) run -- "${WORDS[@]}"
}

peer_of() {
    run 110 "peer-lora-$1" "$1" "$2" $((16 * $1)) peer -- grpo_peer.py --mode compile --iterations 3 --warm-up 2 --pictures 16
}

dit_peer_of() {
    run 80 "peer-dit-ddp-$1" "$1" "$2" $((128 * $1)) peer -- dit_peer.py --how ddp --pictures 128
}

# Four lanes, so that 1, 2 and 4 ranks have the same sums.
lora_same() {
    lora_words 4 3 --set distributed.lanes=4 --set checkpoints.every=1
    run 100 "lora-same-$1" "$1" "$2" 32 run "${@:3}" -- "${WORDS[@]}"
}

dit_same() {
    dit_words 16 4 --set distributed.lanes=4
    run 70 "dit-same-$1" "$1" "$2" 256 run -- "${WORDS[@]}"
}

part_lora() { each_size lora_of; }

part_dit() {
    dit_weights
    each_size dit_of
}

part_peers() { each_size peer_of; }

part_sharded() {
    each_size dit_peer_of
    run 80 "peer-dit-fsdp2-$(largest)" "$(largest)" 0 $((128 * $(largest))) peer -- dit_peer.py --how fsdp2 --pictures 128
}

part_bytes() {
    dit_weights
    if [ -z "${ALONE:-}" ] && [ "$GPUS" -ge 4 ]; then
        dit_same 1 0 & dit_same 2 2 & lora_same 1 1 &
        wait
    else
        dit_same 1 0
        lora_same 1 0
        dit_same 2 0
    fi
    lora_same 2 0
    python3 bench/scaling_run.py same dit-same-1 dit-same-2
    python3 bench/scaling_run.py same lora-same-1 lora-same-2
    [ "$GPUS" -ge 4 ] || return
    dit_same 4 0
    python3 bench/scaling_run.py same dit-same-1 dit-same-4
    lora_same 4 0
    python3 bench/scaling_run.py same lora-same-1 lora-same-4
}

# The last rank is killed in iteration 3 of 3; half as many go on, to the bytes of the run that nobody killed.
part_killed() {
    local ranks
    ranks=$(largest)
    [ "$ranks" -le 4 ] || ranks=4
    lora_words 4 3 --set distributed.lanes=4 --set checkpoints.every=1
    run 80 lora-killed "$ranks" 0 32 run --kill $((ranks - 1)) --after 2 -- "${WORDS[@]}"
    run 80 lora-killed $((ranks / 2)) 0 32 run --resume -- "${WORDS[@]}"
    python3 bench/scaling_run.py same lora-same-1 lora-killed
}

if [ "$GPUS" -lt 2 ]; then
    echo "this machine has $GPUS GPU; the run is about several" >&2
    exit 1
fi
{
    echo "# $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1), $GPUS cards, $(nproc) cores, $(date -u +%F)"
    echo "| run | ranks | pictures | ms an iteration: median after the first two (least to most) | pictures a second | s to the end of the first iteration | most GiB by card | |"
    echo "|---|---|---|---|---|---|---|---|"
} >>"$OUT/table.txt"
[ $# -gt 0 ] || set -- lora dit peers bytes killed sharded
for part in "$@"; do
    if [ $SECONDS -ge "$LIMIT_S" ]; then
        echo "| $part | not begun: $SECONDS s are over |" | tee -a "$OUT/table.txt"
        continue
    fi
    began=$SECONDS
    "part_$part"
    echo "# $part took $((SECONDS - began)) s" | tee -a "$OUT/table.txt"
done
