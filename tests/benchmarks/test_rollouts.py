"""The programs that time rollouts: what TRL plays in theirs is comap's own conversation."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

MEASURE = Path(__file__).parents[2] / "benchmarks" / "measure"


def test_trl_reads_and_writes_the_conversations_of_comap():
    pytest.importorskip("trl", minversion="1.16")
    from trl.chat_template_utils import is_chat_template_prefix_preserving, supports_tool_calling

    from comap.lm.tiny import tokenizer_of

    program = runpy.run_path(str(MEASURE / "rollouts_trl.py"))
    template, parsed = program["TEMPLATE"], program["parsed"]
    tokenizer = tokenizer_of(["Action: go to bed 1 You arrive. The task is over."] * 2, 400, 2048)
    first, observation = {"role": "user", "content": "You see a bed 1."}, "You arrive at bed 1."
    ours = [first, {"role": "assistant", "content": "Action: go to bed 1"}]
    ours.append({"role": "user", "content": observation})
    expected_text = tokenizer.apply_chat_template(ours, tokenize=False, add_generation_prompt=True)
    reply = tokenizer("Action: go to bed 1<|end|>").input_ids
    parsed_reply = parsed(
        tokenizer, reply, tokenizer("You see a bed 1.<|end|><|assistant|>").input_ids
    )
    assert parsed_reply["tool_calls"][0]["function"]["arguments"] == {"action": "go to bed 1"}
    over = tokenizer("Won.\n\nThe task is over.<|end|><|assistant|>").input_ids
    assert "tool_calls" not in parsed(tokenizer, reply, over)
    tokenizer.chat_template = template
    assert supports_tool_calling(tokenizer) and is_chat_template_prefix_preserving(tokenizer)
    theirs = [first, parsed_reply, {"role": "tool", "name": "act", "content": observation}]
    assert expected_text == tokenizer.apply_chat_template(
        theirs, tokenize=False, add_generation_prompt=True
    )


def test_ratios_are_of_pairs():
    summary = runpy.run_path(str(MEASURE / "rollouts.py"))["summary"]
    before, now = ([{"seconds": float(n)} for n in seconds] for seconds in ((8, 9, 10), (4, 3, 10)))
    ratios = summary(before=before, now=now)
    assert ratios["median"] == {"before": 9.0, "now": 4.0}
    assert ratios["ratio"]["now"]["median"] == 2.0 and ratios["ratio"]["now"]["max"] == 3.0
