"""What a PaW training begins with: a model, perhaps warmed up on demonstrations."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from ...agents.tags import env_name
from ...errors import OptionError
from ...trajectory import Trajectory
from ..policy_samples import warmup_samples
from ..processes import is_first, wait
from ..setup import Environments, show_expert
from ..setup_models import tiny_for_training
from .config import PaWTraining

if TYPE_CHECKING:
    from ...lm.sft import Row

__all__ = ["warmed_up"]

_PARAMETERS = 500_000


def warmed_up(
    config: PaWTraining,
    model: str | Path | None,
    make_env: Callable[[str], gymnasium.Env[str, str]],
    out: Path,
    tell: Callable[[Mapping[str, Any]], object],
    demos: str | Path | None = None,
) -> str | Path:
    """Return the folder or name of the policy that reinforcement learning begins with.

    With ``warmup_tokens`` the model first learns the expert's actions, in the prompts that the agent
    uses, by plain fine-tuning; in search QA in tags too, with a short thought. It is kept in the folder
    ``model`` and not trained again.

    Args:
        config: The settings.
        model: A folder, or without a warm-up a name on the hub; None builds a tiny model.
        make_env: Makes environments; `Environments`, where a model is built or demonstrations played.
        out: The training's folder.
        tell: Told what happens.
        demos: A file of demonstrations; None lets the environment's expert play.

    Raises:
        OptionError: There is no model and no warm-up, or the model to warm up is no folder; or the
            agent's replies have tags, and the environment is not search QA.
    """
    if not config.warmup_tokens:
        if model is None:
            raise OptionError(
                "expected a model to train, found none; add --model, such as --model "
                "Qwen/Qwen2.5-1.5B-Instruct, or try --preset tiny, which has a small one"
            )
        return model
    showing = _checked(config, model, make_env)
    target = out / "model"
    if model is None:  # all processes wait for each other there
        model = out / "untrained"
        tiny_for_training(model, showing.env_id, parameters=_PARAMETERS, seed=config.seed)
    if is_first() and not target.is_dir():
        _warm_up(config, Path(model), showing, out, tell, demos)
    wait()
    return target


def _checked(config: PaWTraining, model: str | Path | None, make_env: Any) -> Environments:
    """Refuse a warm-up that cannot be, and return what makes its environments."""
    if not isinstance(make_env, Environments):
        raise OptionError("a warm-up needs comap.trainers.setup.Environments as make_env")
    if config.prompts != "brief" and env_name(make_env.env_id) != "searchqa":
        raise OptionError(
            "expected prompts='brief' with warmup_tokens, since demonstrations have actions and no "
            f"thoughts in tags, found {config.prompts!r}; give a model that can write tags, or brief"
        )
    if model is not None and not Path(model).is_dir():
        raise OptionError(
            f"expected the folder of a model with warmup_tokens, found {str(model)!r:.120}; give a "
            "folder of save_pretrained, or warmup_tokens=0"
        )
    return make_env


def _warm_up(
    config: PaWTraining,
    base: Path,
    make_env: Environments,
    out: Path,
    tell: Callable[[Mapping[str, Any]], object],
    demos: str | Path | None,
) -> None:
    """Fine-tune the model on demonstrations, into the folder ``model``, whole or not at all."""
    from ...lm.sft import SFTConfig, fine_tune

    shown = show_expert(make_env, config, demos and Path(demos), tell)  # type: ignore[arg-type]
    rows = _rows(config, shown, base)
    draft = out / "model.part"
    shutil.rmtree(draft, ignore_errors=True)

    def step(done: int, total: int, loss: float) -> None:
        tell({"event": "warmup", "done": done, "of": total, "loss": loss})

    sft = SFTConfig(
        tokens=config.warmup_tokens,
        seed=config.seed,
        batch_tokens=config.warmup_batch_tokens,
        learning_rate=config.warmup_rate,
    )
    fine_tune(base, draft, rows, sft, step)
    draft.replace(out / "model")


def _rows(config: PaWTraining, shown: Sequence[Trajectory], base: Path) -> list[Row]:
    """Return what the model learns from demonstrations, in the prompts that the agent uses."""
    settings = config.agent_settings()
    if config.prompts == "tags":
        from ...agents.paw import PaWConfig
        from .tagged_warmup import tagged_rows

        return list(tagged_rows(shown, PaWConfig(**settings), base))
    from ...agents.config import AgentConfig
    from ...lm.sft import Row

    given = {name: value for name, value in settings.items() if name != "memory_turns"}
    samples = warmup_samples(shown, AgentConfig(**given))
    return [Row(sample.messages, sample.text) for sample in samples]
