# Two GPUs: T29; on the first A/B of early launches, then issue 6's rest; on the second Triton's kernels for the grid, then cells.   carry scratch .gpu/site .gpu/commit .gpu/vendor1 .gpu/normask
export OUT=${OUT:-/tmp/out}; mkdir -p $OUT; export PYTHONUNBUFFERED=1; t0=$(date +%s)
nvidia-smi -L
(export CUDA_VISIBLE_DEVICES=1 TRITON_CACHE_DIR=/tmp/triton STOF_CACHE_DIR=/tmp/stof1
 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor_warm timeout 330 python3 scratch/engine_warm.py 20 0 60 > $OUT/warm.txt 2>&1
 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor timeout -s INT $((560 - $(date +%s) + t0)) python3 scratch/grid2.py $((470 - $(date +%s) + t0)) "$(cat .gpu/commit)" 16x2048 > $OUT/grid1.txt 2>&1) &
STOF_CACHE_DIR=/tmp/stof PYTHONPATH=$PWD timeout 80 python3 -m pytest -q -p no:cacheprovider --benchmark-disable -m gpu --require-gpu -rs tests/runtime/test_program_gpu.py tests/engine/test_engine_gpu.py -k another_device 2>&1 | tail -4
echo "== T29 at $(($(date +%s) - t0)) s"
export CUDA_VISIBLE_DEVICES=0
bash scratch/early_ab.sh 2>&1 | cut -c1-150; echo "== A/B at $(($(date +%s) - t0)) s"
bash scratch/i5.sh; echo "== i5 at $(($(date +%s) - t0)) s"
wait; echo "== all at $(($(date +%s) - t0)) s"
tail -3 $OUT/warm.txt; grep -c " s, at" $OUT/warm.txt; grep -vE " [0-9.]+ s, at" $OUT/warm.txt | tail -5 | cut -c1-200; grep -E "^ *[0-9]+ s gpu|Error" $OUT/grid1.txt | cut -c1-220
cp /tmp/engine_kept/engine_grid_h200.jsonl $OUT/
