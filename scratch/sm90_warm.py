"""Compile FlexAttention and FlashAttention 4 for bench_attention_hopper.py in many processes, into caches on disk.

    python3 scratch/sm90_warm.py PROCESSES SECONDS [table|dims|small|scattered|heavy|first ...]      (first: table, bf16; default: all)

With the environment of sm90_all.sh: TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR, FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 and _DIR. About 180 compilations x 5 s / 14 processes, by estimate,
and 20 s until torch is there everywhere. What fails is said and skipped. Without a GPU: `list` instead of the parts.
"""
import os, sys, time
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context


def jobs(parts):
    """Return (shape, mask, dtype, way) by what is dearest first, each once."""
    import bench_attention_hopper as bench
    from shapes import HEAVY_ATTENTION, HOPPER_ATTENTION, HOPPER_DIMS, HOPPER_SCATTERED, HOPPER_SMALL
    grids = {
        "table": bench.grid(HOPPER_ATTENTION), "heavy": bench.grid(HEAVY_ATTENTION), "small": bench.grid(HOPPER_SMALL),
        "dims": bench.grid(HOPPER_DIMS, ("full", "causal")), "scattered": list(HOPPER_SCATTERED),
    }
    found = {}
    for part in parts or grids:
        for shape, name in grids["table" if part == "first" else part]:
            for dtype in ("bfloat16",) if part == "first" else ("bfloat16", "float16"):
                if name != "full" and part != "dims":
                    found[shape, name, dtype, "Flex+FA4"] = found[shape, name, dtype, "Flex"] = None
                if name in ("full", "causal", "sliding", "causal-sliding", "document"):  # of FA4 a kernel depends on head dim, type and kind alone, of documents on whether one tile holds each, too
                    found.setdefault((shape, name, dtype, "FA4"), None)
    seen, kept = set(), []
    for job in found:
        key = job if job[3] != "FA4" else (job[0][3], job[1] == "document" and job[0][2] <= 128, *job[1:])
        if key not in seen:
            seen.add(key)
            kept.append(job)
    return sorted(kept, key=lambda job: ("Flex+FA4", "FA4", "Flex").index(job[3]))


def compile_one(job):
    (b, h, s, d), name, dtype, way = job
    start = time.time()
    try:
        import attention_cells as cells
        import attention_peers as peers
        import cupy, torch
        q, k, v = cells._inputs((b, h, h, s, s, d), dtype)
        if name == "full":
            mask = cells.Mask(name, None, None, 0, 0, {}, 1.0)
        elif name.startswith("elements"):
            mask = cells.Mask(name, None, cupy.random.default_rng(0).random((s, s), dtype="f4") < float(name[8:]), 0, 0, {}, 0.01)
            mask.arrays["dense"] = mask.dense
        else:
            form, _, looked_up = cells._described(name, s)
            arrays = {key: cupy.asarray(value) for key, value in looked_up.items()}
            mask = cells.Mask(form.kind, None, cells._dense(form, s, arrays), form.reach, form.tokens, arrays, 0.1)
        made = cells.Cell((b, h, h, s, s, d), q, k, v, None, mask)
        with torch.no_grad():
            peers.PEERS[way](made)()
        torch.cuda.synchronize()
        told = ""
    except Exception as error:
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"[:120]
    try:
        cells._inputs.cache_clear(), torch.cuda.empty_cache(), cupy.get_default_memory_pool().free_all_blocks()
    except Exception:
        pass
    return job, time.time() - start, told


def main(processes, seconds, parts):
    start, found = time.time(), jobs(parts)
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    waiting = [pool.submit(compile_one, job) for job in found]
    done, late = wait(waiting, timeout=seconds)
    took = [each.result() for each in done if each.exception() is None]
    for way in ("Flex", "Flex+FA4", "FA4"):
        times = sorted(t for job, t, told in took if job[3] == way and not told)
        if times:
            print(f"warm {way}: {len(times)} compiled, median {times[len(times) // 2]:.1f} s, most {times[-1]:.1f}")
    told = {}
    for job, _, why in took:
        if why:
            told.setdefault((job[3], why), []).append(job)
    for (way, why), which in told.items():
        print(f"warm {way}: {len(which)} failed, e.g. {which[0][:3]}: {why}")
    print(f"warm: {len(done)} of {len(found)} in {time.time() - start:.0f} s, {len(late)} left, {sum(e.exception() is not None for e in done)} lost", flush=True)
    started = list(pool._processes)  # which shutdown forgets
    pool.shutdown(wait=False, cancel_futures=True)
    for process in started:
        try:
            os.kill(process, 9)
        except OSError:
            pass
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["list"]:
        every = jobs(sys.argv[2:])
        print(len(every), *every[:3])
    else:
        main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
