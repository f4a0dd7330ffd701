from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from comap.errors import OptionError
from comap.spaces import Unicode

LONGEST = 500
TEXTS = ["", "plain", "é" * LONGEST, "\N{PILE OF POO}" * LONGEST, "a\x00b\n", "x\ud83dy", ""]


class Speaker(gymnasium.Env[str, str]):
    """Says `TEXTS` in turn, then whatever it is told."""

    def __init__(self, offset: int = 0):
        self.observation_space = self.action_space = Unicode(LONGEST)
        self.offset = offset

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = self.offset
        return TEXTS[self.turn % len(TEXTS)], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        observation = action if action.startswith("say") else TEXTS[self.turn % len(TEXTS)]
        return observation, 0.0, False, False, {}


def test_contains_any_text_up_to_its_length() -> None:
    space = Unicode(LONGEST)
    assert all(text in space for text in TEXTS)
    assert np.str_("text") in space
    for outsider in ("x" * (LONGEST + 1), b"x", 3, None, ["x"]):
        assert outsider not in space


def test_equality_hash_repr_and_pickle() -> None:
    assert Unicode(5) == Unicode(5) != Unicode(6)
    assert Unicode(5) != gymnasium.spaces.Text(5)
    assert hash(Unicode(5)) == hash(Unicode(5))
    assert repr(Unicode(5)) == "Unicode(5)"
    assert pickle.loads(pickle.dumps(Unicode(5))) == copy.deepcopy(Unicode(5)) == Unicode(5)
    assert len(pickle.dumps(Unicode())) < 2000
    assert not Unicode(5).is_np_flattenable


@pytest.mark.parametrize("length", [0, -1, 1.5, "9", True, None])
def test_bad_lengths_are_refused(length: Any) -> None:
    with pytest.raises(OptionError, match="max_length"):
        Unicode(length)


def test_gymnasium_accepts_it() -> None:
    check_env(Speaker(), skip_render_check=True)


@pytest.mark.parametrize("shared", [True, False])
def test_async_vectors_carry_every_text(shared: bool) -> None:
    envs = AsyncVectorEnv([lambda: Speaker(0), lambda: Speaker(3)], shared_memory=shared)
    sync = SyncVectorEnv([lambda: Speaker(0), lambda: Speaker(3)])
    try:
        observations = [envs.reset()[0]]
        expected = [sync.reset()[0]]
        for _ in TEXTS:
            observations.append(envs.step(("x", "x"))[0])
            expected.append(sync.step(("x", "x"))[0])
        assert observations == expected
        assert observations[0] == (TEXTS[0], TEXTS[3]), (
            "earlier observations must stay what they were"
        )
        assert all(type(text) is str for texts in observations for text in texts)
        assert all(texts in envs.observation_space for texts in observations)
    finally:
        envs.close()
        sync.close()


def test_without_copy_the_view_is_live() -> None:
    envs = AsyncVectorEnv([Speaker, Speaker], copy=False)
    try:
        first = envs.reset()[0]
        assert tuple(first) == ("", "")
        second = envs.step(("say one", "say two"))[0]
        assert second is first, "copy=False hands out the same object each time"
        assert list(first) == ["say one", "say two"]
        assert (first[-1], first[:1], len(first)) == ("say two", ("say one",), 2)
        assert copy.deepcopy(first) == ("say one", "say two")
    finally:
        envs.close()


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's report of the worker's error
def test_a_too_long_text_says_what_to_do() -> None:
    envs = AsyncVectorEnv([Speaker])
    try:
        envs.reset()
        with pytest.raises(OptionError, match=r"at most 500 .* found 601; .*max_text_length"):
            envs.step(("say" + "!" * 598,))
    finally:
        envs.close(terminate=True)
