"""python3 scratch/epi_turns.py ROUNDS TREE ...: kernels of several trees (.gpu/trial/TREE), each timed in turn; medians in us, and of each the ratio to the first tree's, by rounds."""
import json, os, re, subprocess, sys
from statistics import median
rounds, names, here = int(sys.argv[1]), sys.argv[2:], os.getcwd()
def start(name):
    tree = here if name == "." else f"{here}/.gpu/trial/{name}"
    return subprocess.Popen([sys.executable, f"{here}/scratch/epi_worker.py"], cwd=tree, env=os.environ | {"PYTHONPATH": tree, "STOF_CACHE_DIR": f"/tmp/stof_{name}"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
workers = [start(n) for n in names]
for w in workers: assert w.stdout.readline().strip() == "ready"
times = [[] for _ in names]
for _ in range(rounds):
    for w, t in zip(workers, times):
        w.stdin.write("go\n"); w.stdin.flush(); t.append(json.loads(w.stdout.readline()))
text = open(f"{here}/scratch/epi_worker.py").read()
cases = re.findall(r"\(\((\d+, \d+, \d+)\), (\w+(?:\([^)]*\))?), \"(\w+)\"\)", text)
for i, (size, how, kind) in enumerate(cases):
    base = median(t[i] for t in times[0])
    print(f"{size.replace(', ', 'x'):16} {how[:28]:28} {kind:9}", " ".join(f"{n} {median(x[i] for x in t):8.1f} ({median(x[i] / y[i] for x, y in zip(t, times[0])):.3f})" for n, t in zip(names, times)), flush=True)
for w in workers: w.stdin.close()
