"""Compiles kernels on all cores, each in a process: python3 scratch/compile_specs.py FILE.pkl.xz ...   (1 to 3 s of a core each; what the cache has is passed over)

A file is a pickled list of kernels' specs, as `emulated_gpu.py` saw them loaded: `--pack LOG FILE.pkl.xz` makes it of what EMULATE_LOG wrote.
"""
import lzma, os, pickle, sys, time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

sys.path[:0] = [os.getcwd()]


def attempt(spec):
    from stof_cupy import env
    from stof_cupy.jit.cache import Store
    start, wrong = time.time(), None
    try:
        Store(env.cache_dir("kernels")).get(spec, "90a")
    except Exception as error:
        wrong = f"BAD {spec.name} {' '.join(repr(error).split())[:200]}"
    return time.time() - start, spec.name, wrong


def logged(path):
    with open(path, "rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


if __name__ == "__main__":
    if sys.argv[1] == "--pack":
        found = list(dict.fromkeys(logged(sys.argv[2])))
        with lzma.open(sys.argv[3], "wb") as file:
            pickle.dump(found, file)
        sys.exit(f"{len(found)} kernels")
    found = {}
    for path in sys.argv[1:]:
        with lzma.open(path) as file:
            found |= dict.fromkeys(pickle.load(file))
    start = time.time()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        every = sorted((each.result() for each in as_completed([pool.submit(attempt, spec) for spec in found])), reverse=True)
    print(*(wrong for *_, wrong in every if wrong), sep="\n", end="")
    print(len(found), "kernels in", round(time.time() - start), "s; slowest:", *(f"{name} {s:.1f}" for s, name, _ in every[:3]))
