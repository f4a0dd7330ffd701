"""The connection to a vLLM server: TRL's client, and TRL's way of sending weights through it."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any, NamedTuple

from ...errors import LanguageModelError, MissingExtra, OptionError
from ...lm.openai_connection import address_of

__all__ = ["START", "Server", "connect", "failed", "pusher", "sampled"]

START = (
    "start one with VLLM_SERVER_DEV_MODE=1 vllm serve MODEL "
    """--weight-transfer-config '{"backend": "nccl"}' --logprobs-mode raw_logprobs"""
)
"""How to start a server that training can use."""

_ROUNDED = 1e-3  # a log-probability of 0 may come out a little above
_MODES = ("raw_logprobs", "processed_logprobs")


class Server(NamedTuple):
    """A server that was reached.

    Attributes:
        client: TRL's ``VLLMClient``.
        host: What to call its host.
        logprobs_mode: Whether it tells log-probabilities before (``raw_logprobs``) or after
            temperature and top-p (``processed_logprobs``).
        context: The most tokens of prompt and answer together.
    """

    client: Any
    host: str
    logprobs_mode: str
    context: int


def connect(url: str, *, timeout: float, group_port: int) -> Server:
    """Return a server once it is up.

    Args:
        url: Its address, ``http://host:8000``; a path ``/v1`` is left out.
        timeout: For how many seconds to wait for it.
        group_port: The port of this machine over which weights are sent.

    Raises:
        OptionError: It is no such address.
        MissingExtra: TRL or one of the packages that its client needs is not installed.
        LanguageModelError: There is no such server, or it is set up in a way that cannot be used.

    Example:
        >>> connect("http://127.0.0.1:8000", timeout=240, group_port=51216).context  # doctest: +SKIP
        32768
    """
    address = address_of(url)
    made = _client_class()
    base = address.url.rstrip("/").removesuffix("/v1")
    _wait_for(base, timeout)
    try:
        client = made(base_url=base, group_port=group_port, connection_timeout=timeout)
        told = client.get_server_info()["model_config"]
        mode, context = str(told["logprobs_mode"]), int(told["max_model_len"])
    except Exception as error:  # TRL raises plain exceptions, whatever the server said
        raise failed("a vLLM server that tells how it was set up", error, START) from error
    if mode not in _MODES:
        raise LanguageModelError(
            f"expected a vLLM server whose --logprobs-mode is {' or '.join(_MODES)}, found "
            f"{mode!r:.40}; {START}"
        )
    return Server(client, address.host, mode, context)


def pusher(
    client: Any, model: Any, tokenizer: Any, accelerator: Any = None, device: Any = None
) -> Any:
    """Return TRL's ``VLLMGeneration`` around a client that there is; its ``sync_weights`` sends.

    Args:
        client: TRL's client.
        model: What is trained.
        tokenizer: Its tokenizer.
        accelerator: The trainer's; None for one of its own.
        device: The CUDA device that sends; None for the accelerator's.

    Raises:
        OptionError: It is no CUDA device: vLLM's transfer engine has no other.
        LanguageModelError: The server does not join.

    Example:
        >>> pusher(client, model, tokenizer).sync_weights()  # doctest: +SKIP
    """
    import torch
    from accelerate import Accelerator
    from trl.generation.vllm_generation import VLLMGeneration

    accelerator = Accelerator() if accelerator is None else accelerator
    place = torch.device(accelerator.device if device is None else device)
    if place.type != "cuda":
        raise OptionError(
            f"expected a CUDA device to send weights from, found {place}; train on a GPU, or "
            "generate in the training's own process"
        )

    class Pusher(VLLMGeneration):  # type: ignore[misc]
        def _init_vllm(self) -> None:
            self.vllm_client = client
            if self.accelerator.is_main_process and client.communicator is None:
                client.init_communicator(device=place)
            self.accelerator.wait_for_everyone()

    try:
        return Pusher(model, accelerator, tokenizer, mode="server")
    except Exception as error:  # as above
        raise failed("a vLLM server that takes weights", error, START) from error


def sampled(answer: Any, prompt: Sequence[int]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the sampled tokens and the log-probability of each of them.

    Args:
        answer: What TRL's client returned for one prompt.
        prompt: The prompt's tokens.

    Raises:
        LookupError: Something is missing.
        TypeError: Something is of another kind.
        ValueError: The server read another prompt, or its numbers cannot be.

    Example:
        >>> told = {"prompt_ids": [[5]], "completion_ids": [[7]]}
        >>> sampled({**told, "logprobs": [[[-0.5]]], "logprob_token_ids": [[[7]]]}, [5])
        ((7,), (-0.5,))
    """
    ((read,), (tokens,)) = answer["prompt_ids"], answer["completion_ids"]
    ((logprobs,), (told,)) = answer["logprobs"], answer["logprob_token_ids"]
    if list(read) != list(prompt):
        raise ValueError(f"it read {len(read)} other tokens than the {len(prompt)} it was given")
    if not tokens or any(type(token) is not int or token < 0 for token in tokens):
        raise ValueError(f"its tokens are {tokens!r:.80}")
    found = [
        float(values[known.index(token)])
        for token, known, values in zip(tokens, told, logprobs, strict=True)
    ]
    if not all(value < _ROUNDED for value in found):
        raise ValueError("its log-probabilities are no numbers, or above 0")
    return tuple(tokens), tuple(min(value, 0.0) for value in found)


def failed(expected: str, error: Exception, advice: str = "see its log") -> LanguageModelError:
    """Return what to say of an exception that a server is the cause of, on one short line.

    Example:
        >>> print(failed("a completion", KeyError("choices")))
        expected a completion, found KeyError: 'choices'; see its log
    """
    said = " ".join(str(error).split())[:300]
    return LanguageModelError(
        f"expected {expected}, found {type(error).__name__}: {said}; {advice}"
    )


def _client_class() -> Callable[..., Any]:
    """Return TRL's client, once it is known that it can be made."""
    try:
        from trl.generation import vllm_client
    except ImportError as error:
        raise MissingExtra.of("train", "a vLLM server") from error
    lacking = [
        package
        for package, known in (
            ("requests", vllm_client.is_requests_available()),
            ("vllm", vllm_client.is_vllm_available()),
        )
        if not known
    ]
    if lacking:
        raise MissingExtra(
            "a vLLM server needs in this process too, for TRL's client, packages that are not "
            f'installed: {", ".join(lacking)}; run: pip install "trl[vllm]"'
        )
    found: Callable[..., Any] = vllm_client.VLLMClient
    return found


def _wait_for(base: str, timeout: float) -> None:
    """Wait until a server says that it is well; TRL's client would wait for ever for some answers."""
    deadline = time.monotonic() + timeout
    while (found := _illness(f"{base}/health")) is not None:
        if time.monotonic() >= deadline:
            raise LanguageModelError(f"expected a vLLM server at {base}, found {found}; {START}")
        time.sleep(min(1.0, max(deadline - time.monotonic(), 0.0)))


def _illness(url: str) -> str | None:
    """Return what is wrong at a URL, or None."""
    try:
        with urllib.request.urlopen(url, timeout=10):
            return None
    except (OSError, HTTPException) as error:  # also any status that is an error
        return f"{type(error).__name__}: {str(error)[:120]}"
