"""What a policy learns before its first update: demonstrations, as single steps or as conversations."""

from __future__ import annotations

import random
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...agents.base import Decision, Reply, Request
from ...agents.convert import views_of
from ...agents.paw import PaWAgent, PaWConfig
from ...envs.registry import text_env_of
from ...envs.searchqa.protocol import read_move
from ...errors import DataCorrupt, LanguageModelError, OptionError
from ...lm import Completion
from ...lm.chat import ChatTokenizer
from ...lm.load import device_of
from ...lm.tiny import Row, SFTConfig, fine_tune
from ...trajectory import Step, Trajectory
from ..processes import is_first, own_device, wait
from ..setup import Environments, show_expert, tiny_for_training
from ..sft import imitation_samples, is_shown
from ..stages import MakeEnv, Tell
from .config import PaWTraining

_PARAMETERS = 500_000  # of a model that is built here
_THOUGHTS = {"search": "I must look this up.", "answer": "I know enough now."}


def warmed_up(
    config: PaWTraining,
    model: str | Path | None,
    make_env: MakeEnv,
    out: Path,
    tell: Tell,
    demos: str | Path | None = None,
    device: str = "auto",
) -> str | Path:
    """Return the folder or name of the policy that reinforcement learning begins with."""
    if not config.warmup.warmup_tokens:
        if model is None:
            raise OptionError(
                "expected a model to train, found none; add --model, such as --model "
                "Qwen/Qwen2.5-1.5B-Instruct, or try --preset tiny, which has a small one"
            )
        return model

    if not isinstance(make_env, Environments):
        raise OptionError("a warm-up needs comap.trainers.setup.Environments as make_env")
    _check_warmup(config, model, make_env)
    if model is None:  # all processes wait for each other there
        model = out / "untrained"
        tiny_for_training(model, make_env.env_id, parameters=_PARAMETERS, seed=config.seed)

    target = out / "model"
    if is_first() and not target.is_dir():
        _learn_demonstrations(config, Path(model), make_env, target, tell, demos, device)
    wait()
    return target


def _check_warmup(config: PaWTraining, model: str | Path | None, make_env: Environments) -> None:
    """Refuse settings that a warm-up cannot have."""
    prompts = config.agent.prompts
    if prompts != "brief" and text_env_of(make_env.env_id).reply_form.kind != "search":
        raise OptionError(
            "expected prompts='brief' with warmup_tokens, since demonstrations have actions and no "
            f"thoughts in tags, found {prompts!r}; give a model that can write tags, or brief"
        )
    if config.warmup.warmup_observations and config.agent.context != "concat":
        raise OptionError(
            "expected context='concat' with warmup_observations, whose conversations hold observations, "
            f"found {config.agent.context!r}"
        )
    if model is not None and not Path(model).is_dir():
        raise OptionError(
            f"expected the folder of a model with warmup_tokens, found {str(model)!r:.120}; give a "
            "folder of save_pretrained, or warmup_tokens=0"
        )


def _learn_demonstrations(
    config: PaWTraining,
    base: Path,
    make_env: Environments,
    target: Path,
    tell: Tell,
    demos: str | Path | None,
    device: str,
) -> None:
    """Fine-tune a model on demonstrations, into a folder, whole or not at all."""
    agent = config.acting()
    template = config.chat_template_kwargs
    file = Path(demos) if demos else None
    side_steps = config.warmup.side_steps
    demonstrations = show_expert(make_env, config, file, tell, side_steps)  # type: ignore[arg-type]

    if agent.prompts == "brief" and agent.context == "summary":
        samples = imitation_samples(demonstrations, agent)
        rows = [Row(sample.messages, sample.text) for sample in samples]
    else:
        share = config.warmup.warmup_observations
        rows = list(
            conversation_rows(demonstrations, agent, base, observations=share, template=template)
        )
    warm_up(
        base,
        target,
        rows,
        config.warmup.warmup_tokens,
        config,
        "warmup",
        tell,
        template,
        device=own_device() if device == "auto" else device,
    )


def warm_up(
    base: Path,
    target: Path,
    rows: Sequence[Row],
    tokens: int,
    config: PaWTraining,
    event: str,
    tell: Tell,
    template: Mapping[str, Any] | None = None,
    *,
    device: str = "cpu",
) -> None:
    """Fine-tune a model on so many tokens of rows, into a folder, whole or not at all."""
    torch_device = device_of(device)
    draft = target.with_name(f"{target.name}.part")
    shutil.rmtree(draft, ignore_errors=True)

    def tell_step(done: int, total: int, loss: float) -> None:
        tell({"event": event, "done": done, "of": total, "loss": loss})

    sft = SFTConfig(
        tokens=tokens,
        seed=config.seed,
        batch_tokens=config.warmup.warmup_batch_tokens,
        learning_rate=config.warmup.warmup_rate,
        final=config.warmup.warmup_final,
        device=str(torch_device),
        half=config.computes_in_half(torch_device.type == "cuda"),
    )
    fine_tune(base, draft, rows, sft, tell_step, template)
    draft.replace(target)


def conversation_rows(
    demonstrations: Iterable[Trajectory],
    config: PaWConfig,
    model: str | Path,
    *,
    observations: float = 0.0,
    template: Mapping[str, Any] | None = None,
) -> Iterator[Row]:
    """Yield a row for each step of demonstrations that is to be copied: the agent's prompt, its reply.

    Where the context is concat, a row is a whole episode, of which the replies of those steps are
    learned; in a share `observations` of the episodes, all tokens are.
    """
    from ...lm.load import load_tokenizer

    agent = PaWAgent(config)
    chat = ChatTokenizer(load_tokenizer(Path(model), None), (), template)
    for demonstration in demonstrations:
        memory: dict[str, Any] = {}  # the agent's: one for all steps of an episode
        row = None
        length = 0  # of that row, in tokens
        reply_spans: list[tuple[int, int]] = []

        for view, _, step in views_of(demonstration, chat.count):
            # The agent itself writes the prompt, as it will when it acts.
            decision = agent.decide(replace(view, memory=memory))
            request: Any = _first_request(decision, demonstration, config)
            reply = _reply_text(step, config)
            (prompt,) = chat.prompts([request])
            if isinstance(prompt, LanguageModelError):
                raise prompt

            # It is given the expert's reply as its own, so that its next prompt goes on from that; with
            # this reply its decision ends.
            (tokens,) = chat.tokens([reply])
            reply_ids = (*tokens, chat.end)
            completion = Completion(
                reply,
                reply_ids,
                prompt_tokens=len(prompt),
                completion_tokens=len(reply_ids),
            )
            with suppress(StopIteration):
                decision.send(completion)

            row = Row(request.messages, reply, request.reply_ids, thinking=request.thinking)
            length = len(prompt) + len(reply_ids)
            if is_shown(step):
                reply_spans.append((len(prompt), length))
                if config.context != "concat":
                    yield row

        # The last row has the whole conversation in its prompt.
        if config.context == "concat" and row is not None and reply_spans:
            generator = random.Random(f"observations\n{demonstration.task}")
            learns_all = generator.random() < observations
            all_tokens = ((1, length),)  # nothing predicts the first
            yield row._replace(spans=all_tokens if learns_all else tuple(reply_spans))


def _first_request(
    decision: Generator[Request, Reply, Decision], demonstration: Trajectory, config: PaWConfig
) -> Request:
    """Return an agent's request for its action; an agent whose prompt is too long makes none."""
    try:
        return next(decision)
    except StopIteration:
        raise DataCorrupt(
            f"expected a demonstration that fits into {config.max_length} tokens, found a "
            f"longer one (task {demonstration.task!r:.80}); raise max_length"
        ) from None


def _reply_text(step: Step, config: PaWConfig) -> str:
    """Return the reply that has a step's action, in the form that the agent's prompts ask for.

    Brief prompts ask for the action alone, those of search QA for a thought and a move in tags.
    """
    if config.prompts == "brief":
        return f"Action: {step.action}"

    move = read_move(step.action)
    if not move.kind:
        raise DataCorrupt(f"expected a search or an answer in tags, found {step.action!r:.80}")
    return f"<think>{_THOUGHTS[move.kind]}</think><{move.kind}>{move.text}</{move.kind}>"
