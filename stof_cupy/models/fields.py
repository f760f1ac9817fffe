"""Reads a config field by field and accounts for every one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from stof_cupy.errors import ConfigError, mismatch

__all__ = ["INERT", "Fields"]

INERT = """
_name_or_path architectures attention_probs_dropout_prob bos_token_id chunk_size_feed_forward
classifier_dropout directionality dtype eos_token_id finetuning_task gradient_checkpointing
hidden_dropout_prob id2label initializer_range label2id num_labels output_attentions
output_hidden_states output_past pad_token_id pooler_fc_size pooler_num_attention_heads
pooler_num_fc_layers pooler_size_per_head pooler_type problem_type return_dict sep_token_id
tie_word_embeddings tokenizer_class torch_dtype torchscript transformers_version use_cache
_attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
_experts_implementation_internal _num_labels _output_attentions _post_init_done
attn_implementation cross_attention_hidden_size decoder_start_token_id task_specific_params
tf_legacy_loss tie_encoder_decoder use_bfloat16

bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping
encoder_no_repeat_ngram_size eos_token_ids exponential_decay_length_penalty forced_bos_token_id
forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups
num_beams num_return_sequences output_scores prefix remove_invalid_values repetition_penalty
return_dict_in_generate suppress_tokens temperature top_k top_p typical_p
"""
"""Fields that do not change hidden states at inference; the second part is text generation's."""

_MOST = 1 << 24
"""Far above any size that a model has, so that a hostile one costs no time and no memory."""

_Choice = TypeVar("_Choice")


class Fields:
    """The fields of one config, each read once by the family that it belongs to.

    Parameters
    ----------
    config : mapping
        A Hugging Face ``config.json``, or a part of it.
    family : str
        Its name for people.
    where : str
        What messages call the mapping.

    Examples
    --------
    >>> fields = Fields({"n_layer": 2, "n_head": "four"}, "GPT-2")
    >>> fields.size("n_layer")
    2
    >>> fields.size("n_head")
    Traceback (most recent call last):
    stof_cupy.errors.ConfigError: config['n_head']: got 'four', expected an integer of at least 1
    """

    def __init__(self, config: Mapping[str, Any], family: str, where: str = "config") -> None:
        if not isinstance(config, Mapping):
            raise ConfigError(mismatch(where, repr(config), "a mapping"))
        self._config = config
        self._family = family
        self._where = where
        self._read: set[str] = set()

    def raw(self, name: str, default: Any = None) -> Any:
        """Return a field as it stands; `default` where it is absent or null."""
        self._read.add(name)
        value = self._config.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer of at least `least`, and of a size that there may be."""
        value = self.raw(name, default)
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
            raise self.error(name, f"an integer of at least {least}")
        if int(value) > _MOST:
            raise self.error(name, f"at most {_MOST}")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive finite number."""
        value = self.raw(name, default)
        wrong = isinstance(value, bool) or not isinstance(value, Real)
        try:
            number = math.nan if wrong else float(value)
        except OverflowError:  # an integer beyond what a float can be
            number = math.inf
        if not (math.isfinite(number) and number > 0):
            raise self.error(name, "a positive number")
        return number

    def optional(self, name: str) -> float | None:
        """Return a positive finite number, or None where it is absent or null."""
        return None if self.raw(name) is None else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def choice(
        self, name: str, choices: Mapping[str, _Choice], default: str | None = None
    ) -> _Choice:
        """Return what a string stands for in `choices`."""
        value = self.raw(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, f"one of {', '.join(map(repr, choices))}")
        return choices[value]

    def fixed(self, name: str, *allowed: Any) -> None:
        """Check a field that changes the mathematics unless it is absent, null or `allowed`."""
        value = self.raw(name)
        if value is not None and value not in allowed:
            raise self.error(name, repr(allowed[0]))

    def finish(self, *inert: str) -> None:
        """Refuse what nobody read and is not known to change nothing.

        Raises
        ------
        ConfigError
            Naming the first such field.
        """
        known = {*self._read, *INERT.split(), *inert}
        unknown = sorted(set(self._config) - known, key=str)
        if unknown:
            raise ConfigError(
                mismatch(
                    f"{self._where}[{unknown[0]!r}]",
                    repr(self._config[unknown[0]]),
                    f"only fields that a {self._family} config has",
                    "remove it if it does not change the model",
                )
            )

    def error(self, name: str, expected: str) -> ConfigError:
        """Return the error that a field is not what was expected."""
        got = repr(self._config[name]) if name in self._config else "nothing"
        return ConfigError(mismatch(f"{self._where}[{name!r}]", got, expected))
