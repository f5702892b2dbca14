#!/usr/bin/env bash
# One run on 1, 2, 4 and 8 GPUs of this machine: how fast, in how much memory, and whether with the same bytes; beside PyTorch.
#
#   FT=flow-train FOLDER=full-size-folder OUT=out bash bench/scaling.sh [PART ...]
#
# FT is the program (built with `--features cuda`); FOLDER, which `lora` and `peers` need, a diffusers folder of SD3.5 medium's sizes
# (`cargo run --release -p flow-pipeline --example full_size_folder -- SMALL FOLDER sd35-medium`). Rows go to $OUT/table.txt and $OUT/rows.jsonl as
# soon as they are known, and what programs say to $LOGS/NAME.log (LOGS is OUT unless set). PyTorch and torchrun are those of `python3`; FOLDER_OF_RUNS (/dev/shm/w) takes 60 GB.
#
# Parts, in the order in which they are worth something, each with its own limit of time:
#   dit        GRPO of all weights of DiT-XL's size, 128 pictures a rank
#   scaled     the same with 128 pictures a rank (weak), and 128 for each card on 1, 2 and all ranks (strong): times and bytes
#   sd35       the same for a LoRA on SD3.5 medium's sizes in pixels (`configs/sd35-shape-h100.toml`), 16 pictures a rank
#   ddp        the weak half of both in PyTorch
#   bytes      the same pictures on 1, 2 and 4 ranks: metrics and weights
#   parts      `distributed.shard = "weights"` and "optimizer" for it: bytes, memory by card, time; and without shares, uncaptured as these are
#   flux       FLUX.1's size in parts: a LoRA on 2 ranks beside 1 with all of it, and all weights trained on 4
#   killed     of eight blocks of DiT-XL, weights being in parts, one rank killed; half as many go on, to the bytes of a run that nobody killed
#   sharded    `dit` in PyTorch: DistributedDataParallel on 1, 2, … ranks, and FSDP2 on all
#   files      what `dit`, `sd35`, `killed` and `flux` begin from, if it is not there
#   optimizer  ZeRO-1 for `dit` on all ranks, beside it without, and their bytes on two
#   nccl       `distributed.order = "nccl"` for `dit` on all ranks
#   lora       GRPO of a LoRA, 16 pictures a rank   peers  the same in PyTorch under torchrun; both, and their bytes, only with FOLDER
# LIMIT_S (400): no part begins later than that. ALONE=1: no two runs at the same time; otherwise those of fewer ranks than there are cards
# run beside each other, on cards of their own. TASKSET=0-39: on these cores. DRY=1: says what would be started; CHECK=h100 beside it:
# checks the runs for such cards, on any machine (GPUS=4), with weights in $FOLDER_OF_RUNS that may be holes.
set -u
cd "$(dirname "$0")/.." || exit 1
: "${FT:?the program flow-train}" "${OUT:?the folder of results}"
export FT OUT LOGS="${LOGS:-$OUT}" FOLDER_OF_RUNS="${FOLDER_OF_RUNS:-/dev/shm/w}" NCCL_NVLS_ENABLE=0
FOLDER="${FOLDER:-}"
GPUS="${GPUS:-$(nvidia-smi -L | wc -l)}"
LIMIT_S="${LIMIT_S:-400}"
DIT="$FOLDER_OF_RUNS/dit-xl"
DIT_8="$FOLDER_OF_RUNS/dit-8"
SD35="$FOLDER_OF_RUNS/sd35"
FLUX="$FOLDER_OF_RUNS/flux"
# Of weights in parts: nothing is recorded, and every block is computed again.
IN_PARTS=(--set distributed.shard=weights --set checkpointing.policy=full
    --set 'acceleration.shared=[{ name = "fused_kernels", params = { mode = "full" } }]')
# Pictures of an untrained model break all rules alike; of this they differ, so there is something to learn, and bytes that can differ.
COLOUR='rewards=[{ kind = "target-colour", rgb = [0.5, 0.5, 0.5] }]'
if [ -n "${TASKSET:-}" ]; then taskset -cp "$TASKSET" $$ >/dev/null; fi
mkdir -p "$FOLDER_OF_RUNS/runs" "$OUT" "$LOGS"

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
        --set distributed.check_replicas_every=0 --set "$COLOUR" "${@:3}")
}

# Random weights in bf16 by PyTorch, in the folder `$1`; what follows says of which model.
weights() {
    local folder=$1
    shift
    [ -e "$folder/diffusion_pytorch_model.safetensors.index.json" ] && return
    if [ -n "${DRY:-}" ]; then echo "shards to $folder" && return; fi
    CUDA_VISIBLE_DEVICES=$((GPUS - 1)) timeout 120 python3 bench/parts_peer.py shards "$folder" "$@" >"$LOGS/$(basename "$folder")-weights.log" 2>&1
}

dit_weights() { weights "$DIT" --model dit-xl --shards 1; }
dit_8_weights() { weights "$DIT_8" --model dit-xl --layers 8 --shards 1; }
sd35_weights() { weights "$SD35" --model sd35-medium --in-channels 3 --shards 1; }
# 24 GB.
flux_weights() { weights "$FLUX" --in-channels 12; }

# A LoRA on SD3.5 medium's sizes: `$1` prompts of eight pictures and `$2` iterations; more after them.
sd35_words() {
    WORDS=(configs/sd35-shape-h100.toml --quiet --set "model.weights=$SD35" --set "sampling.prompts_per_step=$1" --set "run.steps=$2"
        --set sampling.group_size=8 --set optimizer.gradient_accumulation=0 --set checkpointing.policy=attn-only
        --set distributed.check_replicas_every=0 --set "$COLOUR" "${@:3}")
}

# The arguments of a run of `$1` prompts of four pictures and `$2` iterations on FLUX.1's size; more after them.
flux_words() {
    WORDS=(bench/flux-shape.toml --quiet --set "model.weights=$FLUX" --set "sampling.prompts_per_step=$1" --set "run.steps=$2"
        --set distributed.check_replicas_every=0 "${@:3}")
}

# Eight prompts of 16 pictures on each of `$1` ranks, five iterations.
dit_weak() {
    dit_words $((8 * $1)) 9
    run 80 "dit-weak-$1" "$1" "$2" $((128 * $1)) run --stop 5 -- "${WORDS[@]}"
}

# As many for each card, on `$1` ranks, to the end. On all ranks it is `dit_weak`, too.
dit_all() {
    dit_words $((8 * $(largest))) 5 --set "distributed.lanes=$(largest)"
    run 120 "dit-all-$1" "$1" "$2" $((128 * $(largest))) run -- "${WORDS[@]}"
}

sd35_weak() {
    sd35_words $((2 * $1)) 5
    run 100 "sd35-weak-$1" "$1" "$2" $((16 * $1)) run -- "${WORDS[@]}"
}

sd35_all() {
    sd35_words $((2 * $(largest))) 5 --set "distributed.lanes=$(largest)"
    run 120 "sd35-all-$1" "$1" "$2" $((16 * $(largest))) run -- "${WORDS[@]}"
}

# Weak and strong scaling of `$1`, `dit` or `sd35`, and bytes.
scaled() {
    local what=$1 all ranks
    all=$(largest)
    if [ -z "${ALONE:-}" ] && [ "$GPUS" -ge 4 ]; then
        "${what}_all" 1 0 &
        "${what}_weak" 1 1 &
        { "${what}_all" 2 2; "${what}_weak" 2 2; } &
        wait
        ranks=4
    else
        "${what}_all" 1 0
        "${what}_weak" 1 0
        ranks=2
    fi
    while [ $ranks -lt "$all" ]; do
        "${what}_all" $ranks 0
        "${what}_weak" $ranks 0
        ranks=$((2 * ranks))
    done
    "${what}_all" "$all" 0
    ranks=2
    while [ $ranks -le "$all" ]; do
        python3 bench/scaling_run.py same "$what-all-1" "$what-all-$ranks"
        ranks=$((2 * ranks))
    done
}

lora_of() {
    lora_words $((2 * $1)) 5
    run 110 "lora-weak-$1" "$1" "$2" $((16 * $1)) run -- "${WORDS[@]}"
}

# 128 pictures on each of `$1` ranks; `$3` and more words after it for a run that is not `dit-weak`. It is stopped: what is written at an end takes long.
dit_of() {
    dit_words $((8 * $1)) 9 "${@:4}"
    run 80 "${3:-dit-weak}-$1" "$1" "$2" $((128 * $1)) run --stop 6 -- "${WORDS[@]}"
}

peer_of() {
    run 110 "peer-lora-$1" "$1" "$2" $((16 * $1)) peer -- grpo_peer.py --mode compile --iterations 3 --warm-up 2 --pictures 16
}

dit_peer_of() {
    run 80 "peer-dit-ddp-$1" "$1" "$2" $((128 * $1)) peer -- dit_peer.py --how ddp --pictures 128
}

# As `sd35_weak`.
sd35_peer_of() {
    run 110 "peer-sd35-$1" "$1" "$2" $((16 * $1)) peer -- grpo_peer.py --pixels --steps 4 --learnt 2 --mode compile --iterations 3 --warm-up 2 --pictures 16
}

# Four lanes, so that 1, 2 and 4 ranks have the same sums.
lora_same() {
    lora_words 4 3 --set distributed.lanes=4 --set checkpoints.every=1
    run 100 "lora-same-$1" "$1" "$2" 32 run "${@:3}" -- "${WORDS[@]}"
}

# 256 pictures on `$1` ranks; `$3` behind the name, and more words after it.
dit_same() {
    dit_words 16 4 --set distributed.lanes=4 "${@:4}"
    run 80 "dit-same-$1${3:-}" "$1" "$2" 256 run -- "${WORDS[@]}"
}

# Compares `dit-same-1` and the same behind `$1`.
dit_compared() { python3 bench/scaling_run.py same dit-same-1 "dit-same-$1"; }

# Two prompts on two ranks, each with half of the weights, and on one with all of them.
flux_lora_of() {
    flux_words 2 5 --set distributed.lanes=2 "${@:3}"
    run 120 "flux-lora-$1" "$1" "$2" 8 run -- "${WORDS[@]}"
}

part_lora() {
    [ -n "$FOLDER" ] || return
    each_size lora_of
}

part_dit() {
    dit_weights
    each_size dit_of
}

part_scaled() {
    dit_weights
    scaled dit
}

part_sd35() {
    sd35_weights
    scaled sd35
}

part_ddp() {
    if [ -z "${ALONE:-}" ] && [ "$GPUS" -ge 4 ]; then
        dit_peer_of 1 0 & dit_peer_of 2 1 & sd35_peer_of 1 3 &
        wait
    else
        dit_peer_of 1 0
        sd35_peer_of 1 0
    fi
    dit_peer_of "$(largest)" 0
    sd35_peer_of "$(largest)" 0
}

part_peers() {
    [ -n "$FOLDER" ] || return
    each_size peer_of
}

part_files() {
    dit_weights
    dit_8_weights
    sd35_weights
    flux_weights
}

part_sharded() {
    each_size dit_peer_of
    run 80 "peer-dit-fsdp2-$(largest)" "$(largest)" 0 $((128 * $(largest))) peer -- dit_peer.py --how fsdp2 --pictures 128
}

part_bytes() {
    dit_weights
    if [ -z "${ALONE:-}" ] && [ "$GPUS" -ge 4 ]; then
        dit_same 1 0 & dit_same 2 2 &
        if [ -n "$FOLDER" ]; then lora_same 1 1 & fi
        wait
    else
        dit_same 1 0
        if [ -n "$FOLDER" ]; then lora_same 1 0; fi
        dit_same 2 0
    fi
    dit_compared 2
    if [ "$GPUS" -ge 4 ]; then
        dit_same 4 0
        dit_compared 4
    fi
    [ -n "$FOLDER" ] || return
    lora_same 2 0
    python3 bench/scaling_run.py same lora-same-1 lora-same-2
    [ "$GPUS" -ge 4 ] || return
    lora_same 4 0
    python3 bench/scaling_run.py same lora-same-1 lora-same-4
}

part_parts() {
    dit_weights
    if [ -z "${ALONE:-}" ] && [ "$GPUS" -ge 4 ]; then
        dit_same 2 0 -parts "${IN_PARTS[@]}" & dit_same 2 2 -optimizer --set distributed.shard=optimizer &
        wait
    else
        dit_same 2 0 -parts "${IN_PARTS[@]}"
        dit_same 2 0 -optimizer --set distributed.shard=optimizer
    fi
    dit_compared 2-parts
    dit_compared 2-optimizer
    if [ "$GPUS" -ge 4 ]; then
        dit_same 4 0 -parts "${IN_PARTS[@]}"
        dit_compared 4-parts
    fi
    dit_of "$(largest)" 0 dit-parts "${IN_PARTS[@]}"
    # What recording and checkpointing are worth is no cost of the parts.
    dit_of "$(largest)" 0 dit-whole "${IN_PARTS[@]}" --set distributed.shard=none
}

part_flux() {
    flux_weights
    if [ -z "${ALONE:-}" ] && [ "$GPUS" -ge 4 ]; then
        flux_lora_of 2 0 --set distributed.shard=weights & flux_lora_of 1 2 &
        wait
    else
        flux_lora_of 2 0 --set distributed.shard=weights
        flux_lora_of 1 0
    fi
    python3 bench/scaling_run.py same flux-lora-1 flux-lora-2
    [ "$GPUS" -ge 4 ] || return
    # Of each rank one micro-batch: what `flux-shape.toml` says.
    flux_words 4 9 --set distributed.lanes=4 --set distributed.shard=weights --set model.finetune=full
    run 170 flux-full-4 4 0 16 run --stop 5 -- "${WORDS[@]}"
}

part_optimizer() {
    dit_weights
    if [ -z "${ALONE:-}" ] && [ "$GPUS" -ge 4 ]; then
        dit_same 2 0 & dit_same 2 2 -optimizer --set distributed.shard=optimizer &
        wait
    else
        dit_same 2 0
        dit_same 2 0 -optimizer --set distributed.shard=optimizer
    fi
    python3 bench/scaling_run.py same dit-same-2 dit-same-2-optimizer
    dit_of "$(largest)" 0 dit-optimizer --set distributed.shard=optimizer
    dit_of "$(largest)" 0
}

part_nccl() {
    dit_weights
    dit_of "$(largest)" 0 dit-nccl --set distributed.order=nccl
}

# Eight blocks of DiT-XL, 256 pictures, six iterations with a checkpoint behind the third, as `$1` on `$2` ranks from card `$3` on.
killed_of() {
    dit_words 16 6 --set model.dit.layers=8 --set "model.weights=$DIT_8" --set distributed.lanes=4 "${IN_PARTS[@]}" --set checkpoints.every=3
    run 70 "$1" "$2" "$3" 256 run "${@:4}" -- "${WORDS[@]}"
}

# The last rank is killed behind iteration 4 of 6, weights being in parts; half as many go on from the checkpoint of iteration 3, and meanwhile
# one rank does all of it.
part_killed() {
    local ranks
    dit_8_weights
    ranks=$(largest)
    [ "$ranks" -le 4 ] || ranks=4
    killed_of killed "$ranks" 0 --kill $((ranks - 1)) --after 4
    if [ -z "${ALONE:-}" ] && [ "$GPUS" -ge 4 ]; then
        killed_of killed $((ranks / 2)) 0 --resume & killed_of unharmed 1 2 &
        wait
    else
        killed_of killed $((ranks / 2)) 0 --resume
        killed_of unharmed 1 0
    fi
    python3 bench/scaling_run.py same unharmed killed
}

if [ "$GPUS" -lt 2 ]; then
    echo "this machine has $GPUS GPU; the run is about several" >&2
    exit 1
fi
{
    echo "# $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1), $GPUS cards, $(nproc) cores, $(date -u +%F)"
    echo "| run | ranks | pictures | ms an iteration: median after the first two (least to most) | pictures a second | s from the launch to the end of the first iteration (before it began) | most GiB by card | |"
    echo "|---|---|---|---|---|---|---|---|"
} >>"$OUT/table.txt"
[ $# -gt 0 ] || set -- scaled killed sd35 ddp bytes parts flux sharded optimizer nccl lora peers
for part in "$@"; do
    if [ $SECONDS -ge "$LIMIT_S" ]; then
        echo "| $part | not begun: $SECONDS s are over |" | tee -a "$OUT/table.txt"
        continue
    fi
    began=$SECONDS
    "part_$part"
    echo "# $part took $((SECONDS - began)) s" | tee -a "$OUT/table.txt"
done
