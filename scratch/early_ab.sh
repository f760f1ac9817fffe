# Does it pay to let the next kernel come before this one waits (early), and to ask L2 for a norm's weights (norm)? One GPU, 80 s.  carry scratch .gpu/normask
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof; mkdir -p $OUT /tmp/v
here=$PWD
for v in base early norm both; do
  rm -rf /tmp/v/$v; mkdir -p /tmp/v/$v; from=$here; case $v in norm|both) from=$here/.gpu/normask;; esac
  cp -r $from/stof_cupy $from/cuda /tmp/v/$v/; cp -r benchmarks /tmp/v/$v/
  case $v in early|both) (cd /tmp/v/$v; sed -i 's/griddepcontrol.wait;\\ngriddepcontrol.launch_dependents;/griddepcontrol.launch_dependents;\\ngriddepcontrol.wait;/' cuda/ptx/grid.cuh
    sed -i 's/griddepcontrol.wait;\\\\ngriddepcontrol.launch_dependents;/griddepcontrol.launch_dependents;\\\\ngriddepcontrol.wait;/' stof_cupy/jit/source.py);; esac
done
grep -h "asm volatile(.griddep" /tmp/v/both/cuda/ptx/grid.cuh /tmp/v/both/stof_cupy/jit/source.py /tmp/v/norm/stof_cupy/jit/source.py
for round in 1 2; do for v in base early norm both; do
  (cd /tmp/v/$v; PYTHONPATH=$PWD:$PWD/benchmarks timeout 60 python3 benchmarks/engine_grid.py --out /tmp/v/$v.jsonl --cells ${CELLS:-bert-base:1x128:full gpt2:1x128:full bert-base:8x512:longformer bert-base:16x2048:bigbird} --ways ours --commit $v 2>&1 | grep -vE "Warn|warn" | sed "s/^/$v $round /")
done; done
cp /tmp/v/*.jsonl $OUT/ 2>/dev/null; true
