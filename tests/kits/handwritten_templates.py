"""Chat templates of several kinds, and tokenizers of ours that have them."""

from __future__ import annotations

from functools import cache

from comap.lm.tiny import tokenizer_of

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
LLAMA = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + "
    "'<|end_header_id|>\n\n' + m.content|trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + "
    "' [/INST]' }}{% elif m.role == 'assistant' %}{{ ' ' + m.content + '</s>' }}{% else %}"
    "{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
GEMMA = (  # no system role, another name for the assistant
    "{{ '<bos>' }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}"
    "{% endif %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\n' + "
    "m.content|trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
TEMPLATES = {
    "tiny": (None, (), "<|end|>", "<|assistant|>"),
    "chatml": (
        CHATML,
        ("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
        "<|im_end|>",
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    "llama": (
        LLAMA,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "gemma": (
        GEMMA,
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<end_of_turn>",
        "<start_of_turn>model\n",
    ),
    "mistral": (MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", " [/INST]"),
}


@cache
def template_tokenizer(name):
    template, special, end, _ = TEMPLATES[name]
    corpus = ["You see a shelf 1. It is dark. Thought Action go to Act well user assistant"] * 2
    tokenizer = tokenizer_of(corpus, 400)
    if template is not None:
        tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
        tokenizer.eos_token = end
        tokenizer.chat_template = template
    return tokenizer
