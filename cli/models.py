"""The models that the options of a command name: a language model, a world model, and what runs them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..agents import ExpertAgent, RandomAgent, run_episodes
from ..agents.config import check_adapter
from ..agents.create import tiny_folder
from ..agents.run import RUN, read_run
from ..envs.panel import evenly
from ..envs.registry import own_class
from ..errors import DataCorrupt, OptionError
from ..lm import LanguageModel, OpenAILanguageModel
from ..lm.create import (
    check_engine_of,
    create_language_model,
    hush,
    kind_of,
    shipped_models,
    takes_engine,
)
from ..lm.engine_choice import EngineChoice, resolved_engine
from ..lm.vllm_transports import is_url
from ..redaction import public_options, without_secrets
from ..trainers.setup import Environments
from ..worldmodel import CachedWorldModel, RetrievalWorldModel, WorldModel, transitions_of
from ..worldmodel.language import LanguageWorldModel
from .options import EnvOptions, Pairs, Texts, as_pairs

AnyWorldModel: TypeAlias = "WorldModel | str | Mapping[str, Any] | None"

SHIPPED_WORLD = "shipped:wm"
"""The name of the world model that comap ships; as a world model, ``shipped`` alone means it."""

SHIPPED_AGENT = "shipped:agent"
_BUILT_IN = ("tiny", "shipped", SHIPPED_AGENT, SHIPPED_WORLD)
_WORLDS = ("noisy", "null", "oracle", "retrieval", *_BUILT_IN)
_IN_PYTHON = {
    "language": "name the language model itself, as for --model: --world-model Qwen/Qwen3-4B",
    "cached": "name the world model, and add --world-model-cache query",
}
"""The ids of `create_world_model` that are none of the command line's, and what to give instead."""
_VLLM_SHARE = 0.9  # of a GPU's memory, which vLLM takes where nobody says otherwise


@dataclass(frozen=True, kw_only=True)
class ModelOptions(EnvOptions):
    """Models."""

    model: str | None = None
    """Language model: shipped (a small trained one, part of comap), tiny (a small untrained one, built
    in OUT/model), a folder of save_pretrained, a name on the Hub (Qwen/Qwen3-4B),
    http://HOST:PORT/v1#NAME, or replay:FILE. Default: shipped, in the environments that it was trained
    for. `comap models` lists the kinds."""
    base_url: str | None = None
    """Address of the server that has the model named by --model."""
    adapter: Texts = field(default_factory=dict)
    """LoRA adapter to load, as NAME=DIR; with a server, the server's name for it. Repeatable."""
    engine: str = "auto"
    """What runs Hugging Face models: hf (transformers), vllm (in this process), the address of a 'vllm
    serve', or auto (vllm where it is installed and there is a CUDA GPU, else hf)."""
    engine_memory: float | None = None
    """Share of the GPU's memory for each vLLM in this process (default: its own choice, divided by
    their number)."""
    device: str | None = None
    """Device of models in this process: auto, cpu, cuda or cuda:N."""
    dtype: str | None = None
    """Data type of models in this process: auto, float32, float64, bfloat16 or float16."""
    model_option: Pairs = field(default_factory=dict)
    """Another option of the model, such as batch_rows=16 (hf), eager=true (vllm) or prices=[0.1,0.4] (a
    server of OpenAI's protocol). Repeatable."""
    tiny_parameters: int = 500_000
    """Number of parameters of the tiny model."""
    world_model: str | None = None
    """World model, which predicts the observation after an action: oracle (tries the action in the real
    environment), noisy (the oracle with errors), retrieval (fitted on the train split), null (nothing
    happens), FILE.jsonl (a saved retrieval model), MODULE:CLASS (your own), or a language model as for
    --model. Default: oracle for agents that use one, shipped for comap with the shipped model."""
    world_model_prompts: str | None = None
    """Prompts of a language world model: standard or brief."""
    world_model_state_text: str | None = None
    """State in the prompts of a language world model: history or belief."""
    world_model_adapter: str | None = None
    """Adapter of a language world model, one of those of --adapter."""
    world_model_option: Pairs = field(default_factory=dict)
    """Another option of a language world model, of noisy or of your own, such as max_new_tokens=64.
    Repeatable."""
    world_model_cache: Literal["query", "belief"] | None = None
    """Cache predictions by query, or by action and belief (an approximation)."""
    prompts: Path | None = None
    """Folder of your own prompts, whose files replace comap's; `comap init prompts` writes one with all
    of them."""
    error_rate: float = 0.1
    """Share of wrong predictions of the world model noisy."""
    fit_tasks: int = 100
    """Number of tasks to fit the world model retrieval on."""

    def kind_of_world(self) -> str | None:
        """Return which world model the options name, in the words of a run's record.

        A language model is ``given``: its name and settings are recorded elsewhere.
        """
        spec = self.world_model
        if is_class_name(spec):
            options = public_options(self.world_model_option, own_class(str(spec)))
            return " ".join([str(spec), *as_pairs(without_secrets(options))])
        if spec == "retrieval":
            seed = getattr(self, "seed", 0)
            return f"retrieval, fitted on {self.fit_tasks} tasks of train, seed {seed}"
        return spec if spec is None or spec in _WORLDS else "given"


class Models:
    """The models that options name, each loaded once: agent and world model may share one.

    What has to be made first, a tiny model or a retrieval model, is made in `folder`. `needs` are the
    capabilities that the agent's own model must have.
    """

    def __init__(
        self,
        options: ModelOptions,
        folder: Path,
        environments: Environments,
        seed: int,
        needs: Collection[str] = (),
    ):
        self._options = options
        self._folder = folder.absolute()
        self._environments = environments
        self._seed = seed
        self._needs = needs
        self._models: dict[str, LanguageModel] = {}
        self.engines: dict[str, EngineChoice] = {}
        """What runs each Hugging Face model."""

    def __call__(self, spec: str) -> LanguageModel:
        if spec not in self._models:
            self._models[spec] = self._make(spec)
        return self._models[spec]

    def world_model(self) -> AnyWorldModel:
        """Return the world model that the options name, or the config that makes one."""
        model = self._uncached_world_model()
        key = self._options.world_model_cache
        if key is None or model is None:
            return model
        if not isinstance(model, str | Mapping):
            return CachedWorldModel(model, key=key)
        return {"id": "cached", "model": model, "key": key}

    def engines_in_words(self) -> dict[str, str]:
        """Return what runs each Hugging Face model and why, by the model's name, for records."""
        return {self(spec).name: str(choice) for spec, choice in self.engines.items()}

    def check_servers(self) -> None:
        """Ask each server once, so that a wrong address, key or name is known before any play."""
        for lm in self._models.values():
            if isinstance(lm, OpenAILanguageModel):
                lm.check_server()

    def _uncached_world_model(self) -> AnyWorldModel:
        options = self._options
        spec = options.world_model
        if spec is None or spec in ("oracle", "null"):
            return spec

        # A config instead of a model: one that belongs to an episode is made for each of them anew.
        if spec == "noisy":
            config = {"id": spec, "error_rate": options.error_rate, "seed": self._seed}
            return {**config, **options.world_model_option}
        if is_class_name(spec):
            return {"id": spec, **options.world_model_option}

        if spec == "retrieval":
            return self._retrieval()
        if _is_memory(spec):
            return RetrievalWorldModel(spec)
        return self._language_world_model(spec)

    def _language_world_model(self, spec: str) -> LanguageWorldModel:
        """Return a language model that is prompted to predict, with the settings that hold for it."""
        options = self._options
        if options.base_url is None:
            if spec in _IN_PYTHON and not Path(spec).exists():
                raise OptionError(
                    f"the world model {spec!r} is an id of Python (comap.worldmodel.create_world_model) "
                    f"alone; {_IN_PYTHON[spec]}"
                )
            _check_name(spec, _WORLDS, "world model")
        named: dict[str, Any] = {
            "prompts": options.world_model_prompts,
            "state_text": options.world_model_state_text,
            "adapter": options.world_model_adapter,
        }
        if options.prompts is not None:
            named["prompt_folder"] = str(options.prompts)
        named = {name: value for name, value in named.items() if value is not None}

        # The later ones win: what the run was begun with, how the model was trained, what is named.
        limits = limits_of_before(self._folder, "world_model", ("max_length", "max_new_tokens"))
        trained = shipped_models().settings["world_model"] if spec == SHIPPED_WORLD else {}
        settings = {**limits, **trained, **named, **options.world_model_option}

        lm = self(spec)
        try:
            model = LanguageWorldModel(lm, **settings)
        except TypeError as error:
            raise OptionError(
                f"expected options of a language world model, found {settings!r:.200}: {error}"
            ) from error
        check_adapter(lm, model.adapter)
        return model

    def _make(self, spec: str) -> LanguageModel:
        """Load a language model, with those of the options that are about it."""
        options = self._options
        is_main = options.model in (None, spec)  # what the options of models are about
        base_url = self._base_url(spec)
        if base_url is None:
            _check_name(spec, _BUILT_IN, "model")
            if _is_bare(spec) and not spec.startswith((".", "/", "~")):
                print(f"loading {spec} from the hub, where it is not on this machine", flush=True)
        hush()

        settings: dict[str, Any] = {}
        if is_main or kind_of(spec, base_url) == kind_of(str(options.model), options.base_url):
            settings = {"device": options.device, "dtype": options.dtype, **options.model_option}

        # With two models the world model's adapter goes to the world model, and all others to the agent's.
        adapters = dict(options.adapter)
        if options.model is not None and options.world_model not in (None, options.model):
            adapter_of_world = options.world_model_adapter
            adapters = {
                name: folder
                for name, folder in adapters.items()
                if (name == adapter_of_world) != is_main
            }

        choice = self._engine_choice(spec, settings)
        if choice is not None:
            self.engines[spec] = choice
        return create_language_model(
            spec,
            base_url=base_url,
            build_tiny=self._tiny,
            adapters=adapters or None,
            **self._engine_options(choice),
            **settings,
        )

    def _base_url(self, spec: str) -> str | None:
        """Return the address of the server that has a model, as --base-url names it."""
        # A bare name of a world model may be another model of the same server.
        options = self._options
        return options.base_url if options.model in (None, spec) or _is_bare(spec) else None

    def _engine_specs(self) -> set[str]:
        """Return the Hugging Face models that the options name: each gets an engine of its own."""
        specs = {self._options.model}
        world_model = self._options.world_model
        if not (world_model in _WORLDS or is_class_name(world_model) or _is_memory(world_model)):
            specs.add(world_model)
        return {spec for spec in specs if spec and takes_engine(spec, self._base_url(spec))}

    def _engine_choice(self, spec: str, settings: Mapping[str, Any]) -> EngineChoice | None:
        """Return what runs a Hugging Face model, and print it; None for other models."""
        engine = self._options.engine
        specs = self._engine_specs()
        if spec not in specs:
            # Named for a model that never runs there: where no other model takes it, it is refused.
            if not specs:
                check_engine_of(spec, self._base_url(spec), engine)
            return None
        if is_url(engine) and len(specs) > 1:
            raise OptionError(
                f"the server of --engine runs one model, found two ({' and '.join(sorted(specs))}); name "
                "the world model by a server of its own (--world-model http://HOST:PORT/v1#NAME)"
            )

        choice = resolved_engine(engine, settings)
        if choice.name == "vllm" and not is_url(engine):
            choice = self._unless_hf_is_needed(choice)
        if choice not in self.engines.values():
            print(f"engine: {choice}", flush=True)
        return choice

    def _unless_hf_is_needed(self, choice: EngineChoice) -> EngineChoice:
        """Return vLLM in this process, or the engine hf where that alone can do what is asked for."""
        is_named = self._options.engine == "vllm"
        if "encode" in self._needs and not is_named:
            return EngineChoice("hf", "the agent reads hidden states")
        if getattr(self._options, "workers", None) is None:
            return choice
        if is_named:
            raise OptionError(
                "each worker on Ray would start a vLLM of its own, and this process one more; start one "
                "'vllm serve' and give its address (--engine http://HOST:PORT), or use --engine hf"
            )
        return EngineChoice("hf", "the workers on Ray load models of their own")

    def _engine_options(self, choice: EngineChoice | None) -> dict[str, Any]:
        """Return the options of `create_language_model` that are about the engine."""
        if choice is None:
            return {}
        engine = self._options.engine
        memory = self._options.engine_memory
        if memory is not None and (is_url(engine) or engine == "hf"):
            raise OptionError("--engine-memory is about vLLM in this process; leave it out")
        if is_url(engine):
            return {"engine": engine}

        number = len(self._engine_specs())
        if memory is None and number > 1:
            memory = round(_VLLM_SHARE / number, 3)
        return {"engine": choice.name, "engine_memory": memory}

    def _tiny(self) -> Path:
        folder = self._folder / "model"
        parameters = self._options.tiny_parameters
        env_id = self._environments.env_id
        return tiny_folder(folder, env_id, parameters=parameters, seed=self._seed)

    def _retrieval(self) -> RetrievalWorldModel:
        """Return a retrieval model fitted on an expert's and a random agent's episodes."""
        # A run that is resumed goes on with the model that it was begun with.
        path = self._folder / "retrieval.jsonl"
        if path.exists():
            return RetrievalWorldModel(path)

        make_env = partial(self._environments, "train")
        with closing(make_env()) as env:
            tasks = evenly(env.get_wrapper_attr("tasks").ids, self._options.fit_tasks)

        # The expert shows what actions do that lead to goals, and the random agent what others do.
        model = RetrievalWorldModel()
        for agent in (ExpertAgent(), RandomAgent(self._seed, mixed=0.1)):
            for trajectory in run_episodes(make_env, agent, tasks, concurrency=1):
                model.fit(transitions_of(trajectory))
        model.save(path)
        return model


def model_in(engine: str, spec: str, options: Mapping[str, Any]) -> LanguageModel:
    """Return a language model that an option names beside `ModelOptions`, and print what runs it."""
    if takes_engine(spec):
        print(f"engine: {resolved_engine(engine, options)}", flush=True)
    return create_language_model(spec, engine=engine, **options)


def _is_bare(spec: str) -> bool:
    """Return whether a text may be a name on the hub, or that of a server's model: no folder has it."""
    return (
        spec not in _BUILT_IN and kind_of(spec) == "local" and not Path(spec).expanduser().exists()
    )


def _is_memory(spec: str | None) -> bool:
    """Return whether a text names the file of a retrieval model."""
    return spec is not None and spec.endswith(".jsonl") and not spec.startswith("replay:")


def is_class_name(spec: str | None) -> bool:
    """Return whether a text names a class of the user's own: MODULE:CLASS."""
    has_its_form = re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", spec or "") is not None
    return has_its_form and not str(spec).startswith(("shipped:", "replay:"))


def _check_name(spec: str, names: tuple[str, ...], kind: str) -> None:
    """Refuse what looks like a misspelled name before it is looked for on the hub."""
    similar_names = difflib.get_close_matches(spec, names, n=1, cutoff=0.75)
    if similar_names and spec not in names and not Path(spec).exists():
        raise OptionError(
            f"there is no {kind} {spec!r}; did you mean {similar_names[0]!r}? (a folder of this name: "
            f"./{spec})"
        )


def limits_of_before(folder: Path, section: str, names: Sequence[str]) -> dict[str, int]:
    """Return the limits of tokens that a run in a folder was begun with; none where there is no run.

    They followed from the model then: a run that has ended is shown again without asking its server.
    """
    if not (folder / RUN).exists():
        return {}

    recorded: Any = None
    with suppress(DataCorrupt):  # of another command; who goes on with it is told
        record = read_run(folder / RUN)
        recorded = record.get(section) or (record.get("imagined") or {}).get(section)
    if not isinstance(recorded, Mapping):
        return {}
    return {name: recorded[name] for name in names if type(recorded.get(name)) is int}
