"""A model that calls tools, whatever it is asked."""

from __future__ import annotations

from itertools import pairwise

import pytest

from comap.integrations.trl import environment_factory, task_rows


def tool_model(path, env_id, *actions):
    """Write a tiny model with Qwen3's chat template that says one of two calls, whatever it is asked.

    Each call is one token, and only the last token counts for the next: layers add nothing yet, and
    the output has a large weight from each token of what is said to the one that follows it.
    """
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl", minversion="1.16")
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from trl.chat_template_utils import qwen3_chat_template

    from comap.lm.tiny import tokenizer_of

    call_form = '\n{"name": "act", "arguments": {"action": "ACTION"}}\n'
    calls = [call_form.replace("ACTION", action) for action in actions]
    text = environment_factory(env_id)().reset(**task_rows(env_id, 1)[0])
    tokenizer = tokenizer_of([text] * 2, 500, 4096)
    marks = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", *calls]
    tokenizer.add_special_tokens({"additional_special_tokens": marks, "eos_token": "<|im_end|>"})
    tokenizer.chat_template = qwen3_chat_template
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    tiny = Qwen3ForCausalLM(config)
    for layer in tiny.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    says = [f"</think>\n\n<tool_call>{call}</tool_call><|im_end|>" for call in calls]
    pairs = {pair for say in says for pair in pairwise(tokenizer(say).input_ids)}
    first_tokens = sorted({first for first, _ in pairs})
    with torch.no_grad():
        tiny.model.embed_tokens.weight[first_tokens] = torch.eye(32)[: len(first_tokens)]
        for first, second in pairs:
            tiny.lm_head.weight[second, first_tokens.index(first)] = 5.0
    tiny.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
