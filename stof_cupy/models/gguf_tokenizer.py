"""Tokenizers out of GGUF files, as `tokenizers` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stof_cupy.errors import CheckpointError, UnsupportedError, mismatch

__all__ = ["tokenizer_of"]

_CONTROL, _USER, _BYTE = 3, 4, 6
"""``token_type``: control tokens, tokens found before all others, and single bytes."""

_LONGEST = 512
"""Characters of a token, far above what vocabularies have: each is cut at every one of them."""

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 cuts text before it looks for tokens."""


def tokenizer_of(fields: dict[str, Any], tokenizers: Any, name: str) -> Any:
    """Return the ``tokenizers.Tokenizer`` that a GGUF file's metadata describes.

    Parameters
    ----------
    fields : dict
        ``tokenizer.ggml.*`` among them.
    tokenizers : module
    name : str
        Of the file, for messages.

    Raises
    ------
    UnsupportedError
        If it is of a kind not known here.
    CheckpointError
        If its lists do not fit each other.
    """
    own = {k.removeprefix("tokenizer.ggml."): v for k, v in fields.items()}
    tokens, kinds = own.get("tokens"), own.get("token_type")
    if not isinstance(tokens, list) or not isinstance(kinds, (list, type(None))):
        raise CheckpointError(mismatch(name, "no list of tokens", "tokens and their types"))
    kinds = [1] * len(tokens) if kinds is None else kinds
    if len(tokens) != len(kinds):
        raise CheckpointError(mismatch(name, "tokens without their types", "as many of both"))
    if not all(isinstance(token, str) and len(token) <= _LONGEST for token in tokens):
        expected = f"texts of at most {_LONGEST} characters"
        raise CheckpointError(mismatch(f"{name}: tokens", "something else", expected))
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):  # the library panics
        raise CheckpointError(mismatch(f"{name}: tokens", "one twice", "each once"))
    kind = own.get("model")
    if kind == "gpt2":
        made = _bytes(own, vocab, tokenizers, name)
    elif kind == "llama":
        made = _pieces(own, vocab, kinds, tokenizers, name)
    else:
        raise UnsupportedError(mismatch(f"{name}: tokenizer", repr(kind), "'gpt2' or 'llama'"))
    added = tokenizers.AddedToken
    of_kind = list(zip(tokens, kinds, strict=True))
    made.add_special_tokens([added(t, normalized=False) for t, k in of_kind if k == _CONTROL])
    made.add_tokens([added(t, normalized=True) for t, k in of_kind if k == _USER])
    bos = own.get("bos_token_id")
    if own.get("add_bos_token") and isinstance(bos, int) and 0 <= bos < len(tokens):
        try:
            made.post_processor = tokenizers.processors.TemplateProcessing(
                single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
            )
        except ValueError as bad:
            got = f"the token {tokens[bos]!r} before all others ({bad})"
            raise CheckpointError(mismatch(name, got, "a special token")) from bad
    return made


def _bytes(own: dict[str, Any], vocab: dict[str, int], tokenizers: Any, name: str) -> Any:
    """Return a byte-level BPE, GPT-2's kind."""
    merges = own.get("merges")
    pairs = [tuple(str(each).split(" ")) for each in merges] if isinstance(merges, list) else []
    if not all(len(pair) == 2 for pair in pairs):
        raise CheckpointError(mismatch(f"{name}: merges", "something else", "pairs of tokens"))
    pre = tokenizers.pre_tokenizers
    cuts = {
        "default": [],
        "gpt-2": [],
        "smollm": [pre.Digits(individual_digits=True)],
        "llama-bpe": [pre.Split(tokenizers.Regex(_LLAMA3), "isolated")],
    }
    kind = own.get("pre", "default")
    if not isinstance(kind, str) or kind not in cuts:
        known = ", ".join(map(repr, cuts))
        raise UnsupportedError(mismatch(f"{name}: tokenizer.ggml.pre", repr(kind), known))
    made = tokenizers.Tokenizer(_bpe(tokenizers, name, vocab, pairs))
    last = pre.ByteLevel(add_prefix_space=False, use_regex=kind != "llama-bpe")
    made.pre_tokenizer = pre.Sequence([*cuts[kind], last])
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def _pieces(
    own: dict[str, Any], vocab: dict[str, int], kinds: Sequence[int], tokenizers: Any, name: str
) -> Any:
    """Return a BPE over characters with bytes for what it lacks, SentencePiece's kind."""
    scores = own.get("scores")
    if not isinstance(scores, list) or len(scores) != len(kinds) or isinstance(scores[0], str):
        raise CheckpointError(mismatch(f"{name}: scores", "none, or too few", "one a token"))
    model = _bpe(
        tokenizers,
        name,
        vocab,
        _merges(vocab, scores, kinds),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=next((t for t, i in vocab.items() if i == own.get("unknown_token_id")), None),
    )
    made = tokenizers.Tokenizer(model)
    normal = tokenizers.normalizers
    steps = [normal.Replace(" ", "\u2581")]
    if own.get("add_space_prefix", True):
        steps.insert(0, normal.Prepend("\u2581"))
    made.normalizer = normal.Sequence(steps)
    decode = tokenizers.decoders
    after = [decode.Replace("\u2581", " "), decode.ByteFallback(), decode.Fuse()]
    if own.get("add_space_prefix", True):
        after.append(decode.Strip(" ", 1, 0))
    made.decoder = decode.Sequence(after)
    return made


def _merges(
    vocab: dict[str, int], scores: Sequence[float], kinds: Sequence[int]
) -> list[tuple[str, str]]:
    """Return the merges that the scores amount to: a token is made of any two that there are."""
    found = []
    for token, i in vocab.items():
        if kinds[i] in (_CONTROL, _USER, _BYTE):
            continue
        for cut in range(1, len(token)):
            left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[i], i, left, right, token[:cut], token[cut:]))
    return [(left, right) for *_, left, right in sorted(found)]


def _bpe(tokenizers: Any, name: str, vocab: dict[str, int], merges: list[Any], **how: Any) -> Any:
    try:
        return tokenizers.models.BPE(vocab=vocab, merges=merges, **how)
    except Exception as bad:  # the library raises bare Exception for merges of no tokens
        raise CheckpointError(mismatch(f"{name}: tokens", f"unusable ({bad})", "a BPE")) from bad
