#!/bin/bash
# The whole recipe on one GPU: OUT/weights is ready to use at any moment once it is there, and better every few minutes.
#
#   scripts/train_micro.sh OUT [MINUTES]     MINUTES of training, 20 by default; preparing the data comes on top
#
# Stopped at any point, the same command goes on from there. Expert episodes are made on the CPU cores all the while.
# Environment: PYTHON, PRESET, DEVICE, BATCH_TOKENS, PRETRAIN_ROW, ROW_TOKENS, PART (episodes of a part), PROCESSES,
# WORLDS, SAVE_MINUTES, WARM_UP, and CORPUS_ARGS, TOKENS_ARGS, EPISODES_ARGS for more options of these verbs.
# docs/training.md says why it is as it is.
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: scripts/train_micro.sh OUT [MINUTES]" >&2; exit 2; }
OUT=$1 MINUTES=${2:-20}
PYTHON=${PYTHON:-python3} PRESET=${PRESET:-micro} DEVICE=${DEVICE:-auto} SAVE_MINUTES=${SAVE_MINUTES:-2}
BATCH_TOKENS=${BATCH_TOKENS:-196608} PRETRAIN_ROW=${PRETRAIN_ROW:-8192} ROW_TOKENS=${ROW_TOKENS:-32768}
PART=${PART:-500} WARM_UP=${WARM_UP:-100} WORLDS=${WORLDS:-terminal=1,repair=1,retrieval=1}
# Two cores stay free for the trainer. Not from nproc: it believes OMP_NUM_THREADS, which says nothing about processes.
PROCESSES=${PROCESSES:-$("$PYTHON" -c 'from longstep.train.process import usable_cores as n; print(max(1, n() - 2))')}
PRETRAIN_MINUTES=$("$PYTHON" -c 'import sys; print(float(sys.argv[1]) * 0.2)' "$MINUTES")
SFT_MINUTES=$("$PYTHON" -c 'import sys; print(float(sys.argv[1]) * 0.8)' "$MINUTES")

child= writer=
stop() {  # trainer and writer save what they have on SIGTERM
    trap '' INT TERM
    trap - EXIT
    for pid in $child $writer; do kill -TERM "$pid" 2>/dev/null || true; done
    for pid in $child $writer; do wait "$pid" 2>/dev/null || true; done
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop $?' EXIT

# Where there is setpriv, a killed script (SIGKILL) takes its processes with it too.
if command -v setpriv >/dev/null 2>&1; then with_us=(setpriv --pdeathsig TERM); else with_us=(); fi
longstep() { exec ${with_us[@]+"${with_us[@]}"} "$PYTHON" -m longstep "$@"; }
step() {  # in the background and waited for: bash runs no trap while a command is in the foreground
    longstep "$@" &
    child=$!
    wait "$child"
    child=
}
mend() { [ -e "$1" ] || [ ! -e "$1.old" ] || mv "$1.old" "$1"; }  # killed between the two renames of a save

mkdir -p "$OUT"
# shellcheck disable=SC2086  # the _ARGS are several words
[ -e "$OUT/corpus/manifest.json" ] || step train corpus --out "$OUT/corpus" ${CORPUS_ARGS:-}
# shellcheck disable=SC2086
[ -e "$OUT/text/index.json" ] || step train tokens --corpus "$OUT/corpus" --out "$OUT/text" ${TOKENS_ARGS:-}
# shellcheck disable=SC2086
[ -e "$OUT/repairs/index.json" ] ||
    step train tokens --corpus "$OUT/corpus" --out "$OUT/repairs" --repairs ${TOKENS_ARGS:-}

# shellcheck disable=SC2086
longstep train episodes --out "$OUT/episodes" --parts "$PART" --worlds "$WORLDS" --max-document "$ROW_TOKENS" \
    --processes "$PROCESSES" ${EPISODES_ARGS:-} >>"$OUT/episodes.log" 2>&1 &
writer=$!
alive() { kill -0 "$writer" 2>/dev/null; }
until compgen -G "$OUT/episodes/part-*/index.json" >/dev/null; do
    alive || { echo "no episodes were made; $OUT/episodes.log says why" >&2; exit 1; }
    sleep 1
done

common=(--preset "$PRESET" --device "$DEVICE" --batch-tokens "$BATCH_TOKENS" --lr 3e-3 --warm-up "$WARM_UP"
    --save-minutes "$SAVE_MINUTES" --weights "$OUT/weights")

for folder in "$OUT/pretrain/checkpoint" "$OUT/sft/checkpoint" "$OUT/weights"; do mend "$folder"; done
if [ ! -e "$OUT/sft/checkpoint" ]; then
    resume=()
    [ ! -e "$OUT/pretrain/checkpoint" ] || resume=(--resume)
    step train pretrain --out "$OUT/pretrain" --minutes "$PRETRAIN_MINUTES" --row-tokens "$PRETRAIN_ROW" --decay 0 \
        --data "$OUT/text=0.6" --data "$OUT/repairs=0.4" "${common[@]}" ${resume[@]+"${resume[@]}"}
fi

alive || echo "no more episodes are being made; $OUT/episodes.log says why" >&2
resume=(--init "$OUT/pretrain/checkpoint")
[ ! -e "$OUT/sft/checkpoint" ] || resume=(--resume)
step train sft --out "$OUT/sft" --minutes "$SFT_MINUTES" --row-tokens "$ROW_TOKENS" --decay 0.55 --output-weight 0.1 \
    --grow "$OUT/episodes=0.9" --data "$OUT/repairs=0.07" --data "$OUT/text=0.03" "${common[@]}" "${resume[@]}"
alive || echo "no more episodes were being made at the end; $OUT/episodes.log says why" >&2
echo "the model is in $OUT/weights"
