# The engine as it is now: profile of stacks, weights asked for early or not, packed runs.
export OUT=${OUT:-/tmp/out} STOF_CACHE_DIR=/tmp/stof PYTHONPATH=$PWD:$PWD/benchmarks:$PWD/.gpu/site TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
bash scratch/next.sh minilm
start=$(date +%s); at() { echo "=== $(($(date +%s) - start)) s: $*"; }
at compile; timeout 60 python3 scratch/compile_specs.py scratch/engine_specs.pkl.xz 2>&1 | tail -2
at ours; CELLS="bert-base:1x128:full bert-base:8x512:longformer bert-base:16x2048:bigbird gpt2:1x128:full" WAYS=ours bash scratch/engine_gpu.sh ours
at "weights not asked for"; rm -rf /tmp/old; cp -r . /tmp/old; (cd /tmp/old; patch -s -R -p1 < scratch/ask.patch; export PYTHONPATH=/tmp/old:/tmp/old/benchmarks STOF_CACHE_DIR=/tmp/stof_old; CELLS="bert-base:1x128:full bert-base:8x512:longformer gpt2:1x128:full" WAYS=ours OUT=/tmp/old_out bash scratch/engine_gpu.sh ours)
at again; CELLS="bert-base:1x128:full gpt2:1x128:full" WAYS=ours OUT=/tmp/again bash scratch/engine_gpu.sh ours | grep ours
at packed; PYTHONPATH=$PWD timeout 90 python3 scratch/packed_split.py 2>&1 | tail -90
at ragged; PYTHONPATH=$PWD timeout 60 python3 scratch/ragged.py 2>&1 | grep True
at end
