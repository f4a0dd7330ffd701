"""`comap bench noise-gradients`: what share of each loss's gradient falls on what none could foresee?

The diagnostic of METHODS.md 2.9. A policy plays; from its episodes transitions are drawn whose
observation tells something that no world model can know; the policy scores these observations as PaW
trains on them; nothing is trained. In ALFWorld, noise is what a receptacle holds that is looked into
for the first time; elsewhere it is product codes and words in capitals, as in WebShop, where
``--noise listings`` counts titles and prices of products never listed before as well.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ..agents.create import create_agent
from ..envs import TextEnv
from ..errors import CoMapError, OptionError
from ..lm.create import create_language_model
from ..lm.hf import HFLanguageModel
from .options import pairs
from .paw_noise_parts import Noise, NoiseOptions, gather, measure
from .record import circumstances, write_result
from .run_models import hush

__all__ = ["add_parser"]

_PACKAGES = ("torch", "transformers", "gymnasium", "numpy")
_AGENTS: dict[str, dict[str, Any]] = {
    "react": {
        "prompts": "brief",
        "state_text": "belief",
        "form": "given",
        "temperature": 1.0,
        "top_p": 1.0,
    },
    "paw": {},
}
_NAMES = {"count": "tokens", "ce": "CE, 1-p", "mae": "MAE, p(1-p)", "cmae": "CMAE, clipped"}


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench noise-gradients``.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["noise-gradients", "--model", "m"]).transitions
        100
    """
    parser = kinds.add_parser(
        "noise-gradients", help="measure how much gradient of each loss falls on noise (PaW)"
    )
    add = parser.add_argument
    add("--model", required=True, metavar="DIR", help="the policy: a folder, a hub's name, shipped")
    add("--env", default="comap/ALFWorld-v0", metavar="ID", help="id of the environment")
    add("--split", default="train", help="split that is played")
    add("--data-dir", metavar="DIR", help="folder with official data")
    add("--env-option", action="append", metavar="NAME=VALUE", help="option of the environment")
    add("--agent", choices=sorted(_AGENTS), default="react", help="how the policy is asked")
    add("--agent-option", action="append", metavar="NAME=VALUE", help="setting of the agent")
    add(
        "--noise",
        choices=("contents", "codes", "listings"),
        help="what is noise (default: by environment)",
    )
    add("--transitions", type=int, default=100, metavar="N", help="transitions to draw")
    add("--episodes", type=int, default=320, metavar="N", help="most episodes to find them in")
    add("--rho", type=float, default=0.2, help="of the clipped loss")
    add(
        "--max-observation",
        type=int,
        metavar="N",
        help="most tokens of an observation (default: 512; on WebShop 1024)",
    )
    add("--batch-tokens", type=int, default=16_384, metavar="N", help="most tokens of a batch")
    add("--live", type=int, default=16, metavar="N", help="episodes at the same time")
    add("--seed", type=int, default=0, help="seed of everything that is drawn")
    add("--device", help="where the model computes (default: a GPU where there is one)")
    add("--dtype", help="what the model computes with (default: by model and device)")
    add("--result", metavar="FILE", help="write the result to this file, as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    """Run `comap bench noise-gradients` with parsed arguments and return the exit status."""
    wanted = NoiseOptions(
        transitions=options.transitions,
        episodes=options.episodes,
        rho=options.rho,
        live=options.live,
        batch_tokens=options.batch_tokens,
        seed=options.seed,
    )
    told = _AGENTS[options.agent] | pairs(options.agent_option, "--agent-option")
    told.setdefault("seed", options.seed)
    agent = create_agent(options.agent, **told)
    env_options = pairs(options.env_option, "--env-option")
    make_env = partial(_make_env, options, env_options)
    kind: Noise = options.noise or ("contents" if "/ALFWorld-" in options.env else "codes")
    longest = _longest(options)
    hush()
    lm = create_language_model(options.model, device=options.device, dtype=options.dtype)
    if not isinstance(lm, HFLanguageModel):
        raise OptionError(f"expected a model that runs in this process, found {lm.name!r}")
    found, counts = gather(make_env, agent, lm, wanted, kind=kind, max_observation=longest)
    result = {
        "benchmark": "noise gradients",
        "env": options.env,
        "split": options.split,
        "env_options": env_options,
        "agent": {"name": options.agent, **told},
        "model": lm.config(),
        "noise": kind,
        "max_observation": longest,
        "wanted_transitions": options.transitions,
        "seed": options.seed,
        **counts,
        **measure(lm, found, wanted),
        **circumstances(_PACKAGES),
    }
    if options.result is not None:
        write_result(Path(options.result), result)
    _show(result)
    return 0


def _longest(options: argparse.Namespace) -> int:
    """Return the most tokens of an observation: as in training unless told (METHODS.md 2.3)."""
    given: int | None = options.max_observation
    if given is not None:
        return given
    return 1024 if "/WebShop-" in options.env else 512


def _make_env(options: argparse.Namespace, env_options: dict[str, Any]) -> gymnasium.Env[str, str]:
    """Return the environment, or say that it is none of comap's."""
    given = dict(env_options)
    if options.data_dir is not None:
        given["data_dir"] = options.data_dir
    try:
        env = gymnasium.make(options.env, split=options.split, **given)
    except (CoMapError, gymnasium.error.Error):
        raise
    except (ImportError, TypeError, ValueError) as error:
        raise OptionError(f"cannot make the environment {options.env!r}: {error}") from None
    if not isinstance(env.unwrapped, TextEnv):
        raise OptionError(f"expected an environment of comap, found {options.env!r}")
    return env


def _show(result: dict[str, Any]) -> None:
    """Print the shares, in percent."""
    print(
        f"{result['transitions']} transitions of {result['candidates']}, {result['tokens']} tokens, "
        f"{result['noisy_tokens']} of them noise"
    )
    for name, told in result["shares"].items():
        values = [told[key] for key in ("share", "low", "high")]
        share, low, high = ("-" if value is None else f"{100 * value:.1f}" for value in values)
        print(f"share of {_NAMES[name]:14} {share:>5} %  ({low} to {high})")
    for name, told in result["probabilities"].items():
        if told is not None:
            print(
                f"probability, {name:5} tokens: mean {told['mean']:.3f}, median {told['median']:.3f}"
            )
