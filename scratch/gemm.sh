# The GEMM on an H100 (device call with `carry` of wheels from scratch/vendor_bundle.sh); each line can be a call of its own.
# First where the new code has never run: 35 s, kernels compiled in parallel before. A hang ends by the timeout.
export PYTHONPATH=${SITE:+$SITE:}$PWD STOF_CACHE_DIR=/tmp/stof
timeout 60 python3 scratch/gemm_compile.py tests
timeout 150 python3 -m pytest -q -x -p no:cacheprovider -m gpu --require-gpu tests/ops/test_gemm_stages.py tests/ops/test_gemm_fold.py tests/ops/test_gemm_vendor.py tests/ops/test_gemm_sm90.py::test_streams 2>&1 | tail -30
# Pieces, swapped operands, norms in clusters (ALL_OF_HOPPER): the ladder with bounded waits is `git show e51feae:scratch/gemm_sm90.py`, stage "simple", 60 s.
# Then set gemm_model.ALL_OF_HOPPER = True for what follows: sed -i 's/^ALL_OF_HOPPER = False/ALL_OF_HOPPER = True/' stof_cupy/ops/gemm_model.py
timeout 150 python3 -m pytest -q -x -p no:cacheprovider -m gpu --require-gpu tests/ops/test_gemm.py tests/ops/test_gemm_choice.py tests/ops/test_gemm_norm.py 2>&1 | tail -30
# plain + bias_gelu: 150 s with the kernels. Others: -k "swiglu or layer_norm" 90 s, -k fold 60 s.
timeout 240 python3 -m pytest benchmarks/bench_gemm.py -q -m gpu -k "copy or plain or bias_gelu" --budget 200 --benchmark-quiet --benchmark-json=$OUT/gemm_plain.json 2>&1 | tail -30
python3 benchmarks/summary_gemm.py $OUT/gemm_plain.json | tail -40
PYTHONPATH=$PWD python3 benchmarks/gemm_regret.py $OUT/gemm_plain.json --improve | tail -30   # no GPU needed
# torch.compile, about 10 s a cell: bias + GELU over M = 32768 and K <= 1024 and a few of the rest.
timeout 300 python3 -m pytest benchmarks/bench_gemm.py -q -m gpu --heavy -k "compiled and 32768x and (bias_gelu or swiglu) and not 8192 and not 16384" --budget 250 --benchmark-quiet --benchmark-json=$OUT/gemm_compiled.json 2>&1 | tail -5
