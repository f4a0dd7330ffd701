"""Folders of a model that are broken in one way each, and servers that answer wrongly: for tests."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c\nsize 269060552\n"
)


def copy_of(model: Path, folder: Path) -> Path:
    """Return a folder with the files of a model: small ones copied, the weights as a link."""
    folder.mkdir()
    for path in model.iterdir():
        if path.suffix == ".safetensors":
            (folder / path.name).symlink_to(path.resolve())
        else:
            shutil.copy(path, folder / path.name)
    return folder


def _remover_of(*names: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for name in names:
            (folder / name).unlink(missing_ok=True)

    return remove


def _weights(content: bytes) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").write_bytes(content)

    return replace


def _renamed(name: str) -> Callable[[Path], None]:
    def rename(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(b"\0" * 1000)

    return rename


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")

    return change


def _other_config(kind: str, written_by: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        described = {"model_type": kind, "architectures": [written_by]}
        (folder / "config.json").write_text(json.dumps(described), "utf-8")

    return write


def _without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    tokenizer_config = json.loads(path.read_text("utf-8"))
    tokenizer_config.pop("chat_template", None)
    path.write_text(json.dumps(tokenizer_config), "utf-8")


def _template(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        _without_template(folder)
        (folder / "chat_template.jinja").write_text(text, "utf-8")

    return write


def _half(name: str) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        path = folder / name
        content = path.read_bytes()[: path.stat().st_size // 2]
        path.unlink()
        path.write_bytes(content)

    return cut


def _lost_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"model.embed_tokens.weight": 1, "model.norm.weight": 2}
    table = {name: f"model-0000{number}-of-00002.safetensors" for name, number in shards.items()}
    index = {"metadata": {"total_size": 1}, "weight_map": table}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


def _adapter(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}', "utf-8")
    (folder / "adapter_model.safetensors").write_bytes(b"")


def _foreign_adapter(folder: Path) -> None:
    """A LoRA adapter whose base had other shapes."""
    import numpy as np
    from safetensors.numpy import save_file

    _adapter(folder)
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 2,
        "lora_alpha": 2,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": "other/model",
    }
    (folder / "adapter_config.json").write_text(json.dumps(described), "utf-8")
    base = "base_model.model.model.layers.0.self_attn.q_proj.lora"
    weights = {f"{base}_A.weight": np.zeros((2, 7)), f"{base}_B.weight": np.zeros((11, 2))}
    save_file(weights, folder / "adapter_model.safetensors")


BREAKS: dict[str, Callable[[Path], None]] = {
    "notemplate": _without_template,
    "badtemplate": _template("{% for message in messages %}{{ message.content }}"),
    "refusingtemplate": _template("{{ raise_exception('System role not supported') }}"),
    "halfweights": _half("model.safetensors"),
    "noweights": _remover_of("model.safetensors"),
    "downloading": _renamed("model.safetensors.incomplete"),
    "pointer": _weights(_POINTER.encode()),
    "gguf": _renamed("model-q4.gguf"),
    "pickled": _renamed("pytorch_model.bin"),
    "lostshard": _lost_shard,
    "notokenizer": _remover_of("tokenizer.json", "tokenizer.model", "tokenizer_config.json"),
    "halftokenizer": _half("tokenizer.json"),
    "halfconfig": _half("config.json"),
    "narrower": _config(hidden_size=36, head_dim=4),
    "smallvocabulary": _config(vocab_size=100),
    "unknownkind": _config(model_type="tomorrow", architectures=["TomorrowForCausalLM"]),
    "stateful": _other_config("mamba", "MambaForCausalLM"),
    "encoder": _other_config("bert", "BertModel"),
    "quantized": _config(
        quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}
    ),
    "adapter": _adapter,
    "foreign": _foreign_adapter,
}
"""How a copy of a model's folder is broken, by its name."""


def broken_models(model: Path, place: Path) -> None:
    """Make a folder of each kind of break."""
    copy_of(model, place / "model")
    for name, damage in BREAKS.items():
        damage(copy_of(model, place / name))


def _chat_response(text: str, **choice_fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop", **choice_fields}
    usage = {"prompt_tokens": 5, "completion_tokens": 5}
    return {
        "id": "1",
        "object": "chat.completion",
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


_LONG = (
    "This model's maximum context length is 512 tokens. However, your messages have 1313 tokens."
)
ANSWERS: dict[str, tuple[int, Any]] = {
    "fine": (200, _chat_response("Thought: I look.\nAction: look")),
    "empty": (200, _chat_response("")),
    "toolong": (400, {"error": {"message": _LONG, "code": "context_length_exceeded"}}),
    "quota": (429, {"error": {"message": "You exceeded your current quota"}}),
    "gone": (404, {"error": {"message": "The model `m` does not exist."}}),
    "denied": (401, {"error": {"message": "Incorrect API key provided"}}),
    "broken": (500, {"error": {"message": "CUDA out of memory"}}),
    "loading": (503, {"error": {"message": "The model is loading"}}),
    "notemplate": (400, {"error": {"message": "default chat template is no longer allowed"}}),
}
"""What a server answers, by the first part of its path."""


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        name = self.path.split("/")[1]
        server: Any = self.server
        server.asked[name] = server.asked.get(name, 0) + 1
        if name == "dies" and server.asked[name] > 3:
            self.connection.close()
            return
        status, body = ANSWERS.get(name, ANSWERS["fine"])
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def wrong_servers() -> Iterator[int]:
    """Yield the port of a server that answers as `ANSWERS` says."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.asked = {}  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
