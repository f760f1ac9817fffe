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
    ("gguf", work / "gguf", "/tmp", "xz"),
    ("minilm", work / "minilm", MODELS, "xz"),
    ("flan", work / "flan", MODELS, "xz"),
    ("small", work / "small", MODELS, "xz"),
    ("microformer", work / "microformer", MODELS, "xz"),
    ("dinov2", work / "dinov2", MODELS, "xz"),
    ("smollm2", work / "smollm2", MODELS, "xz"),
    ("gemma3", work / "gemma3", MODELS, "tar"),
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
