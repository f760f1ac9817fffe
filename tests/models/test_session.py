"""Decoding as recorded runs: one replay a token, right tokens, sessions used again.

The recorder is a stand-in that runs again what was recorded, into the arrays of the first time; the
same holds on a GPU, for which scratch programs and the gpu tests below are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stof_cupy import TransformerEngine
from stof_cupy.errors import StofWarning
from stof_cupy.models import decoding
from stof_cupy.models.sampling import Sampler
from stof_cupy.models.session import Runner, Session, Sessions, capacity_for
from stof_cupy.runtime import Options, Program
from tests.goldens.cases import DECODERS, GEMMA3, GPT2, LLAMA, NEW, SEQ2SEQ, T5
from tests.models.test_decoders import engine_of, tokens
from tests.runtime.fake import FakeRecorder

GOLDEN = Path(__file__).parents[1] / "goldens" / "decoders.npz"


class Watched:
    """An engine whose runs are recorded by a stand-in, and counted."""

    def __init__(self, config: dict[str, Any], **how: Any) -> None:
        self.recorder = FakeRecorder(**how)
        self.engine = engine_of(config)
        options = Options(record=True, recorder=self.recorder)
        model = self.engine._model
        if model.decoder is None:
            self.engine._program = Program(model.graph, options=options)
        else:  # what reads its source is not what is watched here
            graph = model.decoder.graph
            self.engine._others[graph.name] = Program(graph, options=options)
        self.engine._sessions = Sessions(2)
        self.runs = 0
        run = self.engine._run

        def counted(*given: Any) -> dict[str, Any]:
            self.runs += 1
            return run(*given)

        self.engine._run = counted  # type: ignore[method-assign]

    @property
    def replays(self) -> list[int]:
        return [recording.replays for recording in self.recorder.made]


@pytest.mark.parametrize("name", DECODERS)
def test_a_token_is_one_replay(name):
    watched, prompts = Watched(DECODERS[name]), tokens(DECODERS[name]).tolist()
    with np.load(GOLDEN) as golden:
        greedy = golden[f"{name}/greedy"].tolist()
    assert watched.engine.generate(prompts, max_new_tokens=NEW, stop=()) == greedy
    # The prompts are one run; the first token comes from them.
    assert watched.runs == 1 and watched.replays == [NEW - 1]
    # Other prompts and another number of tokens in the same room: nothing is recorded anew.
    alone = engine_of(DECODERS[name])
    shorter = [row[:20] for row in prompts]
    for count in (1, 5):
        expected = alone.generate(shorter, max_new_tokens=count, stop=())
        assert watched.engine.generate(shorter, max_new_tokens=count, stop=()) == expected
    assert watched.runs == 3 and watched.replays == [NEW - 1 + 4]


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_a_token_is_one_replay_of_a_decoder_that_reads_a_source(name):
    watched = Watched(SEQ2SEQ[name])
    with np.load(GOLDEN.with_name("t5.npz")) as golden:
        ids, greedy = golden[f"{name}/ids"].tolist(), golden[f"{name}/greedy"].tolist()
    assert watched.engine.generate(ids, max_new_tokens=NEW, stop=()) == greedy
    assert watched.runs == 2 and watched.replays == [NEW]  # encoder and bridge
    # Other sources, shorter and of other lengths, and another number of tokens.
    alone = engine_of(SEQ2SEQ[name])
    for prompts in ([[5, 6, 7], [9]], [[3], [*range(2, 40)]]):
        expected = [alone.generate([row], max_new_tokens=9, stop=())[0] for row in prompts]
        assert watched.engine.generate(prompts, max_new_tokens=9, stop=()) == expected
    assert watched.replays == [NEW + 18]
    how: dict[str, Any] = {"max_new_tokens": 9, "temperature": 0.9, "top_p": 0.8, "seed": 3}
    assert watched.engine.generate(ids, **how) == alone.generate(ids, **how)
    assert watched.replays == [NEW + 18, 9]
    assert len(watched.engine._sessions._idle) == 1
    # A source beyond the room is another session, and so are more tokens.
    long = [[5, 6, 7] * 30, [7]]
    assert watched.engine.generate(long, max_new_tokens=70) == alone.generate(
        long, max_new_tokens=70
    )
    assert [*watched.engine._sessions._idle] == [(2, 64, 64), (2, 128, 128)]


def test_a_source_ends_where_it_ends():
    """Whatever an earlier, longer one has left behind it."""
    watched, long = Watched(T5), [[*range(2, 60)]]
    watched.engine.generate(long, max_new_tokens=5, stop=())
    (session,) = watched.engine._sessions._idle.values()
    for name, room in session._source.items():
        if name.startswith("cross"):
            room[:, :, 3:] = np.nan
    short = [[5, 6, 7]]
    expected = engine_of(T5).generate(short, max_new_tokens=12, stop=())
    assert watched.engine.generate(short, max_new_tokens=12, stop=()) == expected


@pytest.mark.parametrize("config", [GPT2, LLAMA, GEMMA3], ids=["gpt2", "llama", "gemma3"])
def test_ragged_prompts_and_windows_that_go_round(config):
    """Prompts shorter and longer than the window, and tokens that fill it more than once."""
    watched = Watched(config)
    window = config.get("sliding_window", 5)
    prompts = [list(range(1, 1 + n)) for n in (1, window - 1, window, window + 1, 23)]
    got = watched.engine.generate(prompts, max_new_tokens=3 * window, stop=())
    assert watched.replays == [3 * window - 1]
    engine = engine_of(config)
    for prompt, new in zip(prompts, got, strict=True):
        row = np.array([prompt + new])
        logits = engine.run(row[:, :-1], output="logits")[0, len(prompt) - 1 :]
        assert logits.argmax(axis=-1).tolist() == new


def test_drawn_tokens_are_the_same_recorded_or_not():
    how: dict[str, Any] = {"max_new_tokens": 9, "temperature": 0.9, "top_p": 0.8, "seed": 3}
    prompts = [[5, 6, 7], [9]]
    watched = Watched(LLAMA)
    expected = engine_of(LLAMA).generate(prompts, **how)
    assert watched.engine.generate(prompts, **how) == expected
    assert watched.replays == [8]
    # Greedy runs of the same room are another recording: theirs takes the token too.
    greedy = engine_of(LLAMA).generate(prompts, max_new_tokens=9)
    assert watched.engine.generate(prompts, max_new_tokens=9) == greedy
    assert watched.engine.generate(prompts, **how) == expected
    assert watched.replays == [16, 8]


@pytest.mark.parametrize("ahead", [False, True])
def test_what_is_launched_ahead_changes_nothing(ahead):
    engine = engine_of(LLAMA)
    prompts = [[3, 4], [5, 6]]
    expected = engine.generate(prompts, max_new_tokens=12, stop=())
    stop = expected[0][4]
    runner = Runner(engine._run, engine._bind)
    session = Session(engine._model, runner, engine._target, 2, 64)
    said = decoding._Said(2, frozenset({stop}), None)
    ids, lengths = np.array(prompts, np.int32), np.array([2, 2], np.int32)
    logits = session.prefill(ids, lengths)
    decoding._follow_best(session, logits, Sampler(), 12, said, ahead=ahead)
    assert said.out == [row[: row.index(stop)] if stop in row else row for row in expected]


def test_all_stopped_is_the_end():
    watched = Watched(LLAMA)
    first = engine_of(LLAMA).generate([[3, 4]], max_new_tokens=6, stop=())[0]
    at = first.index(first[3])
    assert watched.engine.generate([[3, 4]], max_new_tokens=50, stop=first[3]) == [first[:at]]
    assert watched.replays == ([at] if at else [])


def test_what_cannot_be_recorded_is_run_and_counted_right():
    watched = Watched(LLAMA, fails=RuntimeError("capture is not allowed"))
    with pytest.warns(StofWarning, match="could not be recorded .*capture is not allowed"):
        got = watched.engine.generate([[3, 4]], max_new_tokens=9, stop=())
    assert got == engine_of(LLAMA).generate([[3, 4]], max_new_tokens=9, stop=())


def test_a_recorder_that_ran_before_it_failed_leaves_no_trace():
    class Half(FakeRecorder):
        def record(self, run: Any) -> Any:
            run()
            raise RuntimeError("too late")

    watched = Watched(LLAMA)
    watched.engine._program = Program(
        watched.engine._model.graph, options=Options(record=True, recorder=Half())
    )
    with pytest.warns(StofWarning, match="too late"):
        got = watched.engine.generate([[3, 4]], max_new_tokens=9, stop=())
    assert got == engine_of(LLAMA).generate([[3, 4]], max_new_tokens=9, stop=())


def test_sessions_are_kept_by_size_and_bounded():
    made: list[Any] = []

    def make() -> Any:
        made.append(object())
        return made[-1]

    sessions = Sessions(2)
    for batch in (1, 1, 2, 1, 3, 1, 2):
        with sessions.use((batch, 64), make):
            pass
    assert len(made) == 4  # 1, 2, 3, and 2 again
    with sessions.use((1, 64), make) as one, sessions.use((1, 64), make) as other:
        assert one is not other
    with pytest.raises(ValueError), sessions.use((9, 64), make):
        raise ValueError
    count = len(made)
    with sessions.use((9, 64), make):
        assert len(made) == count + 1
    sessions.clear()
    with sessions.use((1, 64), make):
        assert len(made) == count + 2
    nothing = Sessions(0)
    for _ in range(2):
        with nothing.use((1, 64), make):
            pass
    assert len(made) == count + 4


def test_a_closed_engine_keeps_no_session():
    watched = Watched(LLAMA)
    watched.engine.generate([[3]], max_new_tokens=2)
    assert len(watched.engine._sessions._idle) == 1
    watched.engine.close()
    assert not watched.engine._sessions._idle


def test_capacity_is_a_power_of_two_within_the_model():
    model = engine_of(LLAMA)._model  # 64 positions
    assert {capacity_for(model, tokens) for tokens in range(1, 65)} == {64}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt2", "llama-llama3", "gemma3-capped"])
def test_recorded_tokens_are_those_that_are_not(name, dtype):
    prompts = [row[:n] for row, n in zip(tokens(DECODERS[name]).tolist(), (20, 13), strict=True)]
    plain = engine_of(DECODERS[name], backend="cuda", dtype=dtype)
    recorded: TransformerEngine = engine_of(
        DECODERS[name], backend="cuda", dtype=dtype, cuda_graphs=True
    )
    for count in (30, 7):
        expected = plain.generate(prompts, max_new_tokens=count, stop=())
        assert recorded.generate(prompts, max_new_tokens=count, stop=()) == expected


@pytest.mark.gpu
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_recorded_tokens_of_a_decoder_that_reads_a_source(name):
    plain, recorded = (
        engine_of(SEQ2SEQ[name], backend="cuda", dtype="bfloat16", cuda_graphs=graphs)
        for graphs in (False, True)
    )
    for prompts in ([[5, 6, 7], [9]], [[3], [*range(2, 40)]]):
        expected = plain.generate(prompts, max_new_tokens=30, stop=())
        assert recorded.generate(prompts, max_new_tokens=30, stop=()) == expected
