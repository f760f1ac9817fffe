"""Text generation: a small language model answers, token by token.

    python examples/text_generation.py "Name three plays by Shakespeare."

The model is SmolLM2-135M-Instruct, a GGUF file with 4 bits a weight, which is fetched on the first
run and stays in the cache. ``--temperature 0.8 --top-p 0.9`` draws instead of taking the best.
"""

from __future__ import annotations

import argparse
import time

from stof_cupy import TransformerEngine
from stof_cupy.models import zoo

CHAT = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    """Put the question into the model's form of a chat, and print the answer as it comes."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("question", nargs="?", default="Name three plays by Shakespeare.")
    options.add_argument("-n", "--tokens", type=int, default=64, help="at most (default: 64)")
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--top-p", type=float, default=1.0)
    options.add_argument("--backend", default="auto", help="auto, cuda or numpy (default: auto)")
    args = options.parse_args()

    engine = TransformerEngine(zoo.smollm2(), backend=args.backend)
    tokens: list[int] = []
    shown = ""

    def emit(_: int, token: int) -> None:
        nonlocal shown
        tokens.append(token)
        text = engine.detokenize([tokens])[0]
        # What ends in the replacement character is a character whose last bytes are still to come.
        if not text.endswith("\ufffd"):
            print(text[len(shown) :], end="", flush=True)
            shown = text

    start = time.perf_counter()
    engine.generate(
        [CHAT.format(question=args.question)],
        max_new_tokens=args.tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        emit=emit,
    )
    rate = len(tokens) / (time.perf_counter() - start)
    print(f"\n{len(tokens)} tokens, {rate:.1f} a second, {engine.explain().splitlines()[0]}")


if __name__ == "__main__":
    main()
