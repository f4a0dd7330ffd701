"""A vLLM server on this machine, as TRL's client sees it; its answers are a tiny model's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

__all__ = ["VLLM"]

Route = Callable[[Any], tuple[Any, int]]


class Handler(BaseHTTPRequestHandler):
    """Answers as vLLM's server does."""

    protocol_version = "HTTP/1.1"
    owner: VLLM

    def do_GET(self) -> None:
        self.answer(None)

    def do_POST(self) -> None:
        said = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.answer(json.loads(said) if said else {})

    def answer(self, body: dict[str, Any] | None) -> None:
        path = self.path.partition("?")[0]
        with self.owner.lock:
            self.owner.seen.append((path, body))
        reply, status = self.owner.routes.get(path, lambda body: ({"error": "no such page"}, 404))(
            body
        )
        data = b"" if reply is None else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


class VLLM:
    """A server whose answers are a tiny model's, at temperature 0 whatever is asked.

    `seen` are the paths and bodies that came, `model` what answers, `sent` what NCCL handed over.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.seen: list[tuple[str, Any]] = []
        self.sent: list[tuple[str, Any]] = []
        self.lock = threading.Lock()
        self.settings = {"logprobs_mode": "raw_logprobs", "max_model_len": 64}
        self.transfer: Any = {"backend": "nccl"}
        self.routes: dict[str, Route] = {
            "/health": lambda body: (None, 200),
            "/v1/models": lambda body: ({"data": [{"id": "/models/tiny"}]}, 200),
            "/server_info": lambda body: (
                {
                    "vllm_config": {
                        "model_config": self.settings,
                        "weight_transfer_config": self.transfer,
                    }
                },
                200,
            ),
            "/get_world_size": lambda body: ({"world_size": 1}, 200),
            "/init_weight_transfer_engine": lambda body: ({}, 200),
            "/start_weight_update": lambda body: ({}, 200),
            "/update_weights": self.update,
            "/finish_weight_update": lambda body: ({}, 200),
            "/reset_prefix_cache": lambda body: ({"success": True}, 200),
            "/v1/completions": self.complete,
        }
        handler = type("BoundHandler", (Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> VLLM:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def bodies(self, path: str) -> list[Any]:
        return [body for where, body in self.seen if where == path]

    def update(self, body: Any) -> tuple[Any, int]:
        self.announced = body["update_info"]
        return {}, 200

    def receive(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Take what NCCL would bring, as vLLM loads it."""
        told = {name: tensor.detach().clone() for name, tensor in iterator}
        self.sent = list(told.items())
        missing, strange = self.model.load_state_dict(told, strict=False)
        assert not strange and set(missing) <= {"lm_head.weight"}  # which is tied

    def complete(self, body: Any) -> tuple[Any, int]:
        (prompt,) = body["prompt"]
        with self.lock, torch.no_grad():
            tokens, logprobs = self.greedy(prompt, body)
        names = [f"token_id:{token}" for token in tokens]
        choice = {
            "prompt_token_ids": prompt,
            "token_ids": tokens,
            "logprobs": {
                "tokens": names,
                "token_logprobs": logprobs,
                # the likeliest token too, whichever was sampled
                "top_logprobs": [
                    {f"token_id:{10**6}": 0.0, n: p} for n, p in zip(names, logprobs, strict=True)
                ],
            },
        }
        return {"choices": [choice]}, 200

    def greedy(self, prompt: list[int], body: Any) -> tuple[list[int], list[float]]:
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < body["max_tokens"]:
            told = self.model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].log_softmax(-1)
            tokens.append(int(told.argmax()))
            logprobs.append(float(told[tokens[-1]]))
            text = self.tokenizer.decode(tokens)
            if tokens[-1] in body["stop_token_ids"] or any(s in text for s in body["stop"]):
                break
        return tokens, logprobs
