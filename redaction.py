"""Secrets and paths of this machine are taken out of what is written, and looked for in what is pushed."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from .errors import OptionError

HIDDEN = "***"
"""What stands in a file where a secret was."""

_OPTIONS = """
    action_gate action_tokens actions adapter adapters admissible_actions allowed_hosts alternatives
    api_key_env backend base_url batch_rows batch_tokens benchmark browser cache_mb candidate_rounds
    candidate_temperature candidate_top_p candidates chat_template_kwargs compat concurrency context
    control critic_adapter critic_temperature critic_tokens data_dir dataset decoding depth device dialect
    difficulty discount draft_tokens drafts dtype eager encoder ending engine engine_options error_rate
    evaluation_weight examples expert exploration exploration_temperature extra_body final_tokens
    foresight foresight_adapter foresight_temperature foresight_tokens form functions_as future_state
    future_tokens gamma gate generator_seed goal_reward goals goals_per_product head history_turns id
    imagine_tokens info_level invalid_penalty java judge k_fallback k_head k_max k_source k_temperature
    k_tokens key kinds knowledge knowledge_adapter knowledge_temperature legacy level live_url lm
    log_prob_weight log_probs logprobs max_calls max_episode_steps max_length max_new_tokens
    max_observation_length max_retries max_size max_text_length memory_share memory_turns mixed model name
    neighbours observation observation_mode observation_tokens overlap_letters overlap_weight overlay
    p_source path prices prompt_folder prompts q_source questions reflect_tokens reflect_when_closed
    reflections render_mode reply_tokens retrieval_score retries retriever revision reward rollouts
    sandbox seed show_actions show_attrs similarity simplification simulation_temperature simulator sites
    source split splits start_step state_knowledge state_text state_tokens strict_options stuck style
    task_knowledge task_limits task_names task_tokens tasks tau_p tau_q temperature text thinking timeout
    tokenizer told top_p topk trials turns with_thought
"""
OPTIONS = frozenset(_OPTIONS.split())
"""The options of comap's environments, agents and models: the value of no other one is recorded."""

_REQUEST_FIELDS = """
    add_special_tokens allowed_token_ids bad_words cache_prompt chat_template_kwargs date_string effort
    enable_thinking exclude frequency_penalty guided_choice guided_json guided_regex ignore_eos
    include_stop_str_in_output length_penalty logit_bias max_completion_tokens max_tokens
    max_thinking_tokens min_p min_tokens mirostat mirostat_eta mirostat_tau n num_ctx num_predict
    presence_penalty priority reasoning reasoning_effort repeat_last_n repeat_penalty repetition_penalty
    return_token_ids seed service_tier skip_special_tokens spaces_between_special_tokens stop
    stop_token_ids temperature thinking thinking_budget thinking_token_budget tfs_z top_k top_p top_logprobs
    truncate_prompt_tokens typical_p use_beam_search verbosity
    cpu_offload_gb dtype enable_chunked_prefill enable_prefix_caching enforce_eager
    gpu_memory_utilization kv_cache_dtype load_format max_lora_rank max_model_len
    max_num_batched_tokens max_num_seqs quantization swap_space tensor_parallel_size
"""
_OPTIONS_PASSED_ON = frozenset(_REQUEST_FIELDS.split())
# Of requests to a server, of chat templates, and of vLLM's engine, which these options pass on.
_PASSED_ON = ("extra_body", "chat_template_kwargs", "engine_options")
_FREE = ("agent_option", "env_option", "judge_option", "model_option", "world_model_option")
# A user gives those any names and values, and an environment's to one that a class of the user's may be.

_NAMES = (
    r"api_?key|key|token|secret|pass(?:word|wd|phrase|code)?|pwd|cred|credential|auth|authorization"
    r"|bearer|pat|cookie|session_?id|sid|signature|sig|pin|otp|jwt|csrf|xsrf|login"
)
_SECRET = re.compile(rf"(?:^|_)(?:{_NAMES})s?(?:_|$)(?!env$|file$)")
# Without a separator: openaikey, xapikey, hftoken, mypassword. Some words of English end so, too.
_ENDS_AS_SECRET = re.compile(
    r"(?:^|_)(?!(?:mon|don|tur|hoc|joc|whis|hot)keys?(?:_|$))[a-z0-9]*"
    r"(?:key|token|secret|password|passwd|cookie|credential)s?$"
)
# Keys have forms of their own, whatever the name beside them: OpenAI's sk-, Hugging Face's hf_, GitHub's
# gh?_ and github_pat_, GitLab's glpat-, Slack's xox?-, Groq's gsk_, npm's npm_, PyPI's pypi-, Replicate's
# r8_, xAI's xai-, NVIDIA's nvapi-, Stripe's rk_, Amazon's AKIA and ASIA, Google's AIza and ya29; a JSON
# web token begins with eyJ.
_SHAPES = re.compile(
    r"(?:\b(?:sk|rk|hf|gh[opsur]|github_pat|glpat|xox[a-z]|xapp|gsk|npm|pypi|r8|xai|nvapi|dckr_pat|pat)[-_]"
    r"|\b(?:AKIA|ASIA|AIza|eyJ|ya29\.|SG\.)|(?<=Bearer )|(?<=Basic ))[\w./+=-]{12,}"
)
# A text may say it in words: password: S, api_key=S, "token": "S".
_SAID = re.compile(
    r"(?i)(?<![a-z])((?:pass(?:word|wd|phrase)|api[_-]?key|secret|(?:access|auth)[_-]?token|credentials?|cookie"
    r"|authorization)s?[\"']?[ \t]{0,4}[:=][ \t]{0,4}(?:bearer |basic )?)[^\s,;}\]]+"
)
# A scheme has few letters: without a bound, a text of letters alone takes quadratic time.
_URL = re.compile(
    r"(?<!\w)(\w{1,20}://)(?:[^/@\s]*@)?(\[[\w:.]*\](?::\d+)?|[^/?#\s()<>\[\]{}\"',]*)"
    r"(/[^?#\s]*|)(?:\?[^#\s]*)?"
)
# A webhook's address is its secret: only parts of a path that look like words or versions are shown, and
# of a host the same.
_PLAIN_PART = re.compile(
    r"[a-z_-]{0,16}|v?[\d.]{1,8}|[\w.-]{1,40}\.(?:git|gz|json|jsonl|tar|tgz|zip)"
)
_PLAIN_LABEL = re.compile(
    r"(?:\[[0-9a-f:]{2,39}\]|(?:[a-z]{1,20}(?:-[a-z]{1,20}){0,4})?-?\d{0,4})(?::\d{1,5})?",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return whether a value of this name is a secret: a key, a token, a password."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name[:200]).lower()
    return bool(_SECRET.search(parts) or _ENDS_AS_SECRET.search(parts))


def without_secrets(value: Any, name: str = "", free: Collection[str] = ()) -> Any:
    """Return JSON data to be written, with `HIDDEN` for secrets.

    Where a user writes names and values of his own, as in ``extra_body``, only the values of known names
    stand. Elsewhere these are hidden: texts and numbers under names such as ``api_key`` at any depth,
    texts in the form of a known service's keys, and of addresses user, query, and the parts that are no
    plain words.

    Args:
        value: The data.
        name: The name that they have.
        free: Further names of options that have names and values of the user's own.
    """
    if isinstance(value, Mapping):
        return _public_members(value, name, free)
    if isinstance(value, list | tuple):
        return _public_list(value, name, free)
    if isinstance(value, bool) or value is None or value == "":
        return value
    if is_secret(name):
        # A number of tokens is none, nor is the word by which a cache is looked up.
        is_count = isinstance(value, int | float) and "token" in name
        is_word = name == "key" and re.fullmatch("[a-z]{1,8}", str(value))
        return value if is_count or is_word else HIDDEN
    return _public_text(value) if isinstance(value, str) else value


def _public_members(members: Mapping[str, Any], name: str, free: Collection[str]) -> dict[str, Any]:
    """Return a mapping's members: of the user's own ones those of known names."""
    known_names = _known_names(name, free)
    public: dict[str, Any] = {}
    for key, part in members.items():
        key = str(key)
        if known_names is not None and key not in known_names:
            public[key] = part if isinstance(part, bool) or part is None else HIDDEN
        elif known_names is not None and key not in _PASSED_ON and not _is_plain(part):
            # Within the user's own data all names are his: {"reasoning": {"effort": "low"}}.
            public[key] = without_secrets(part, _PASSED_ON[0], free)
        else:
            # What is within a secret is one, whatever its own name.
            public[key] = without_secrets(part, name if is_secret(name) else key, free)
    return public


def _public_list(
    values: list[Any] | tuple[Any, ...], name: str, free: Collection[str]
) -> list[Any]:
    # Headers may be pairs: [["Authorization", "..."]].
    if len(values) == 2 and isinstance(values[0], str) and is_secret(values[0]):
        return [values[0], without_secrets(values[1], values[0], free)]
    if name in _FREE or name in free:
        return [public_option(value, name) for value in values]
    return [without_secrets(value, name, free) for value in values]


def _is_plain(value: Any) -> bool:
    """Return whether JSON data are one text, number or truth value, or nothing."""
    return not isinstance(value, Mapping | list | tuple)


def public_options(options: Mapping[str, Any], owner: type[Any]) -> dict[str, Any]:
    """Return the options of a class's constructor, with `HIDDEN` for what it does not declare.

    A constructor that takes ``**options`` may pass on anything.
    """
    declared: set[str] = set()
    for cls in owner.__mro__:
        if "__init__" in vars(cls):
            declared |= set(inspect.signature(vars(cls)["__init__"]).parameters)
    known_names = OPTIONS | declared
    return {name: part if name in known_names else HIDDEN for name, part in options.items()}


def _known_names(name: str, free: Collection[str]) -> frozenset[str] | None:
    """Return the names whose values stand within an option; None where all may."""
    if name in _PASSED_ON:
        return _OPTIONS_PASSED_ON
    return OPTIONS if name in _FREE or name in free else None


def _public_text(text: str) -> str:
    """Return a text without what has the form of a secret."""
    # JSON in a text has names, too. What has no secret is left as it was written.
    if text[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            data = json.loads(text)
            public = without_secrets(data)
            if public != data:
                text = json.dumps(public)
    text = _SHAPES.sub(HIDDEN, _URL.sub(_public_url, text))
    return _SAID.sub(rf"\g<1>{HIDDEN}", text)


def _public_url(url: re.Match[str]) -> str:
    scheme, host, path = url.groups()
    labels = (label if _PLAIN_LABEL.fullmatch(label) else HIDDEN for label in host.split("."))
    parts = (part if _PLAIN_PART.fullmatch(part) else HIDDEN for part in path.split("/"))
    return scheme + ".".join(labels) + "/".join(parts)


_OPTION = re.compile(r"--[\w.-]+=?")
_NAME = re.compile(r"[\w.-]+=")  # of a value that has a name itself: --model-option api_key=...
_PATH = re.compile(r"(?:(?<=[=,\[\"'(])|^)(?:~|/|[A-Za-z]:[\\/])[^,\"'\])=]*")


def public_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command without secrets, and of machine paths only the last name."""
    public = []
    last_option = ""
    next_is_secret = False  # --api-key VALUE: the value is a word of its own
    for word in words:
        option = (_OPTION.match(word) or [""])[0]
        rest = word[len(option) :]
        if word.startswith("-"):
            last_option = option.strip("-=").replace("-", "_")

        name, equals, value = "", "", rest
        if _NAME.match(rest):
            name, equals, value = rest.partition("=")

        # An option with names of the user's own may have several: --model-option a=1 b=2.
        known_names = _known_names(last_option, ())
        is_unknown = known_names is not None and name.rstrip("=") not in known_names
        # A number of tokens is none: --draft-tokens 24.
        is_count = value.isdecimal() and "token" in (name or last_option).lower()
        has_secret_name = (is_secret(option) or is_secret(name)) and not is_count
        is_hidden = (
            is_unknown or has_secret_name or (next_is_secret and not option and not is_count)
        )
        public.append(option + name + equals + _public_value(value, is_hidden, name))
        next_is_secret = is_secret(option) and not rest
    return public


def public_option(value: Any, name: str) -> Any:
    """Return an option's value, as JSON data, without secrets, and of machine paths the last name."""
    if isinstance(value, Mapping):
        return {key: public_option(part, f"{name}.{key}") for key, part in value.items()}
    if isinstance(value, list):
        return [public_option(part, name) for part in value]
    if not isinstance(value, str):
        return value

    # As on the command line, so that both records of an option say the same.
    (word,) = public_words([f"--{name}={value}"])
    _, _, public = word.partition("=")
    return public


def _public_value(text: str, is_hidden: bool, name: str = "") -> str:
    if is_hidden and text:
        return text if text in ("true", "false", "null", "none") else HIDDEN

    # A value may be JSON, with secrets under its names. What has none is left as it was written.
    with suppress(ValueError, RecursionError):
        data = json.loads(text)
        public = without_secrets(data, name)
        if isinstance(data, dict | list) and public != data:
            text = json.dumps(public)
    text = without_secrets(text)
    return text if "://" in text else _PATH.sub(_last_name, text)


def _last_name(path: re.Match[str]) -> str:
    name = re.split(r"[\\/]", path[0].rstrip("\\/"))[-1]
    return f".../{name}" if name not in ("", "~") else "..."


def check_public(text: str, where: str) -> None:
    """Raise where a text has a secret of this process: what a variable named like one holds."""
    # Short values and paths (SSH_AUTH_SOCK) occur in texts by chance.
    for name, value in os.environ.items():
        if is_secret(name) and len(value) >= 8 and value[0] != "/" and value in text:
            raise OptionError(
                f"expected nothing secret in {where}, found what the variable {name} holds; nothing was "
                "pushed: take it out there"
            )
