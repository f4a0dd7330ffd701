"""GRPO of comap beside TRL's GRPOTrainer with ``environment_factory``: CPU seconds of an update.

``python benchmarks/measure/rollouts_trl.py MODEL FILE`` adds to the file of rollouts.py, whose sizes
and tasks it has. Both train the same tiny policy on the same groups of tasks: rollouts, and one optimizer
step over all rows. To read and write comap's conversations token for token, TRL gets a chat template, a
parser to which "Action: ..." is a call of the tool (until the task is over), and a limit on replies.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium

sys.path.insert(0, str(Path(__file__).parent))
import rollouts as base
from rollouts import GROUPS, MEMBERS, STEPS

UPDATES = int(os.environ.get("UPDATES", "3"))
TEMPLATE = """{% for message in messages -%}
{{ '<|' + ('user' if message.role == 'tool' else message.role) + '|>' }}
{%- for call in message.tool_calls -%}
{{ 'Action: ' + call.function.arguments.action if call.function.arguments.action else call | tojson }}
{%- else %}{{ message.content }}{% endfor %}{{ '<|end|>' }}{% endfor -%}
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

# Trainings are timed from inside, by environments and callbacks, which have no place in common but the
# module.
PLAYED: list[str] = []  # a task at each reset, an empty word at each step
MARKS: list[dict[str, Any]] = []  # when each update was done, and what was played in it


class Counted(gymnasium.Wrapper[str, str, str, str]):
    """An environment that notes its tasks and steps."""

    def reset(self, **arguments: Any) -> Any:
        PLAYED.append(arguments["options"]["task"])
        return super().reset(**arguments)

    def step(self, action: str) -> Any:
        PLAYED.append("")
        return super().step(action)


def mark(**measures: float) -> None:
    """Note that an update is done, and what was played in it."""
    tasks = list(filter(None, PLAYED))
    counts = {"episodes": len(tasks), "steps": len(PLAYED) - len(tasks), **measures}
    MARKS.append({"end": base.clock(), "tasks": list(dict.fromkeys(tasks)), **counts})
    PLAYED.clear()


def means_of_updates() -> dict[str, Any]:
    """Return the means of the updates but the first, in which a process warms up."""
    first, *rest = MARKS
    means = {}
    for name in ("episodes", "steps", "tokens", "won"):
        means[name] = sum(update[name] for update in rest) / len(rest)
    seconds = (rest[-1]["end"] - first["end"]) / len(rest)
    return {"seconds": seconds, **means, "tasks": [update["tasks"] for update in MARKS]}


def train_comap(model: str) -> dict[str, Any]:
    """Train with comap, with what TRL's trainer does not have left out, and return means of updates."""
    from comap.trainers import paw_preset, train_paw

    def tell(event: Any) -> None:
        if event["event"] == "update":
            mark(won=event["success"], tokens=event["response_tokens"])

    changes = {
        **base.ASKS,
        "context": "concat",
        "algorithm": "grpo",
        "paw": False,
        "kl": 0.0,
        "groups": GROUPS,
        "members": MEMBERS,
        "concurrency": GROUPS * MEMBERS,
        "max_episode_steps": STEPS,
        "updates": UPDATES,
        "invalid_penalty": 0.0,
        "mini_batch_rows": None,
        "micro_batch_tokens": 20_000,
        "old_logprobs": "sampled",
        "warmup_tokens": 0,
        "evaluation_tasks": 0,
        "save_updates": 0,
        "learning_rate": 3e-4,
        "entropy_bonus": 0.0,
        "gradient_checkpointing": base.DEVICE != "cpu",
        "precision": "auto",
    }

    def make_env(split: str) -> Any:
        return Counted(base.make(split))

    with tempfile.TemporaryDirectory() as out:
        config = paw_preset("tiny", **changes)
        train_paw(config, model=model, make_env=make_env, out=out, device=base.DEVICE, tell=tell)
    return means_of_updates()


def train_trl(
    model: str, tasks: list[list[str]], vllm_memory: float | None = None
) -> dict[str, Any]:
    """Train with TRL's trainer on the tasks that comap drew, and return means of updates.

    With `vllm_memory`, a share of the GPU's, an engine of vLLM in this process samples.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from comap.integrations.trl import ActEnvironment, environment_factory

    factory: Any = environment_factory(base.ENV, reward="success", split="train", **base.OPTIONS)

    def counted() -> ActEnvironment:
        environment = factory()
        environment.env = Counted(environment.env)
        return environment

    class Mark(TrainerCallback):
        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "reward" in logs:
                mark(won=logs["reward"], tokens=logs["completions/mean_length"] * GROUPS * MEMBERS)

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE
    # TRL asks for a template of replies before it calls the parser, which is ours.
    tokenizer.response_template = {"fields": {}}
    tokenizer.parse_response = lambda ids, prefix, **_: parsed(tokenizer, ids, prefix)

    # 96 rows of 152,000 logits a token do not fit in 80 GB
    on_cpu = base.DEVICE == "cpu"
    parts = 1 if on_cpu else 8
    settings = {
        "per_device_train_batch_size": GROUPS * MEMBERS // parts,
        "num_generations": MEMBERS,
        "gradient_accumulation_steps": parts,
        "max_steps": UPDATES,
        "max_completion_length": 1500,
        "temperature": 1.0,
        "max_tool_calling_iterations": STEPS,
        "learning_rate": 3e-4,
        "bf16": not on_cpu,
        "generation_kwargs": {"max_new_tokens": base.REPLY},
        "shuffle_dataset": False,
        "gradient_checkpointing": not on_cpu,
        "use_cpu": on_cpu,
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
    }

    if vllm_memory is not None:
        settings |= {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": vllm_memory,
            "generation_kwargs": {"max_tokens": base.REPLY},
        }

    # The environment writes the prompt, from the task of its row.
    empty_prompt = [{"role": "user", "content": ""}]
    rows = []
    for update_tasks in tasks:
        rows += [{"prompt": empty_prompt, "task": task} for task in update_tasks]
    with tempfile.TemporaryDirectory() as out:
        GRPOTrainer(
            model=model,
            args=GRPOConfig(output_dir=out, **settings),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            environment_factory=counted,
            callbacks=[Mark()],
        ).train()
    return means_of_updates()


def parsed(tokenizer: Any, ids: list[int], prefix: list[int]) -> dict[str, Any]:
    """Return the message that a reply is: a call of the tool, until the task is over."""
    text = tokenizer.decode(ids, skip_special_tokens=True)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if not tokenizer.decode(prefix[-40:]).endswith("The task is over.<|end|><|assistant|>"):
        action = text.removeprefix("Action:").strip() or "..."
        call = {"name": "act", "arguments": {"action": action}}
        message |= {"content": "", "tool_calls": [{"type": "function", "function": call}]}
    return message


def main(model: str, out: Path) -> None:
    measured: dict[str, list[Any]] = {"trl": [], "comap": []}
    head = {"benchmark": "rollouts", "model": base.describe(model)}
    if out.exists():
        head |= json.loads(out.read_bytes())

    for _ in range(5):
        ours = base.in_process([__file__, "comap", model])
        tasks = ours.pop("tasks")
        theirs = base.in_process([__file__, "trl", model, json.dumps(tasks)])
        # Both must have played the same: TRL draws from its own data set.
        assert tasks == theirs.pop("tasks")
        measured["comap"].append(ours)
        measured["trl"].append(theirs)
        base.extend(out, head, {"update of GRPO beside TRL": base.summary(**measured)})


if __name__ == "__main__":
    if sys.argv[1] in ("comap", "trl"):
        train = train_comap if sys.argv[1] == "comap" else train_trl
        print(json.dumps(train(sys.argv[2], *map(json.loads, sys.argv[3:]))))
    else:
        main(sys.argv[1], Path(sys.argv[2]))
