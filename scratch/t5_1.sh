# GPU 0: old and new in turn; GPU 1: flex, then tests, then the stack at 1x128
B=$PWD/.gpu/base; N=$PWD; export PYTHONPATH_SITE=$PYTHONPATH
cmd() { tree=$1; shift; (cd $tree && PYTHONPATH=$tree:$N/benchmarks:/tmp/site timeout 200 python3 $N/scratch/t5_ab.py "$@"); }
export TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
(export CUDA_VISIBLE_DEVICES=1 STOF_CACHE_DIR=/tmp/stof1
 cmd $N flex > $OUT/flex.txt 2>&1
 PYTHONPATH=$N timeout 200 python3 -m pytest -q -p no:cacheprovider --benchmark-disable -m gpu --require-gpu -rs -n 12 -p xdist tests/ops/test_attention_by_distance.py tests/ops/test_attention_scores.py tests/ops/test_attention_sm90_gpu.py tests/graph tests/models/test_t5.py -k "not flan" > $OUT/tests.txt 2>&1
 for t in $B $N $B $N; do cmd $t stack t5:1x128:full t5:1x128:bigbird 2>&1 | grep -E "^S|Error" | sed "s#^#$t #" >> $OUT/stack.txt; done) &
export CUDA_VISIBLE_DEVICES=0 STOF_CACHE_DIR=/tmp/stof0
(cmd $B warm > $OUT/warm_old.txt 2>&1 & cmd $N warm > $OUT/warm_new.txt 2>&1 & wait)
date; cmd $B time > $OUT/old.txt 2>&1; cmd $N time > $OUT/new.txt 2>&1; date
paste -d'\n' $OUT/old.txt $OUT/new.txt
cmd $N choice > $OUT/choice.txt 2>&1; date; cut -c1-330 $OUT/choice.txt
for t in $B $N $B $N; do cmd $t stack t5:8x512:full t5:16x2048:full t5:16x2048:sliding 2>&1 | grep -E "^S|Error" | sed "s#^#$(basename $t) #" | cut -c1-200; done
date
wait; date
cut -c1-200 $OUT/flex.txt; tail -5 $OUT/tests.txt; grep -E "^(FAILED|ERROR)" $OUT/tests.txt | head -20; cut -c1-200 $OUT/stack.txt
