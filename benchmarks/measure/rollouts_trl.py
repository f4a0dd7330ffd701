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
PLAYED: list[str] = []  # a task at each reset, an empty word at each step
MARKS: list[dict[str, Any]] = []


class Counted(gymnasium.Wrapper[str, str, str, str]):
    """An environment that notes its tasks and steps."""

    def reset(self, **given: Any) -> Any:
        PLAYED.append(given["options"]["task"])
        return super().reset(**given)

    def step(self, action: str) -> Any:
        PLAYED.append("")
        return super().step(action)


def mark(**more: float) -> None:
    """Note that an update is done, and what was played in it."""
    tasks = [task for task in PLAYED if task]
    counts = {"episodes": len(tasks), "steps": len(PLAYED) - len(tasks), **more}
    MARKS.append({"end": base.clock(), "tasks": list(dict.fromkeys(tasks)), **counts})
    PLAYED.clear()


def found() -> dict[str, Any]:
    """Return the means of the updates but the first, in which a process warms up."""
    first, *rest = MARKS
    counts = ("episodes", "steps", "tokens", "won")
    means = {name: sum(one[name] for one in rest) / len(rest) for name in counts}
    seconds = (rest[-1]["end"] - first["end"]) / len(rest)
    return {"seconds": seconds, **means, "tasks": [one["tasks"] for one in MARKS]}


def train_comap(model: str) -> dict[str, Any]:
    from comap.trainers import paw_preset, train_paw

    def tell(event: Any) -> None:
        if event["event"] == "update":
            mark(won=event["success"], tokens=event["response_tokens"])

    changes = {**base.ASKS, "context": "concat", "algorithm": "grpo", "paw": False, "kl": 0.0}
    changes |= {"groups": GROUPS, "members": MEMBERS, "concurrency": GROUPS * MEMBERS}
    changes |= {"max_episode_steps": STEPS, "updates": UPDATES, "invalid_penalty": 0.0}
    changes |= {"mini_batch_rows": None, "micro_batch_tokens": 20_000, "old_logprobs": "sampled"}
    changes |= {"warmup_tokens": 0, "evaluation_tasks": 0, "save_updates": 0, "learning_rate": 3e-4}
    changes |= {"entropy_bonus": 0.0}
    changes |= {"gradient_checkpointing": base.DEVICE != "cpu", "precision": "auto"}
    with tempfile.TemporaryDirectory() as out:
        config = paw_preset("tiny", **changes)
        envs: Any = lambda split: Counted(base.make(split))  # noqa: E731
        train_paw(config, model=model, make_env=envs, out=out, device=base.DEVICE, tell=tell)
    return found()


def train_trl(model: str, tasks: list[list[str]]) -> dict[str, Any]:
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
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, {"fields": {}}
    tokenizer.parse_response = lambda ids, prefix, **_: parsed(tokenizer, ids, prefix)
    # 96 rows of 152,000 logits a token do not fit in 80 GB
    parts = 1 if base.DEVICE == "cpu" else 8
    settings = {
        "per_device_train_batch_size": GROUPS * MEMBERS // parts,
        "num_generations": MEMBERS,
    }
    settings |= {"gradient_accumulation_steps": parts}
    settings |= {"max_steps": UPDATES, "max_completion_length": 1500, "temperature": 1.0}
    settings |= {
        "max_tool_calling_iterations": STEPS,
        "learning_rate": 3e-4,
        "bf16": base.DEVICE != "cpu",
    }
    settings |= {"generation_kwargs": {"max_new_tokens": base.REPLY}, "shuffle_dataset": False}
    settings |= {
        "gradient_checkpointing": base.DEVICE != "cpu",
        "use_cpu": base.DEVICE == "cpu",
        "disable_tqdm": True,
    }
    settings |= {"logging_steps": 1, "save_strategy": "no", "report_to": "none"}
    ids, said = [task for some in tasks for task in some], [{"role": "user", "content": ""}]
    with tempfile.TemporaryDirectory() as out:
        GRPOTrainer(
            model=model,
            args=GRPOConfig(output_dir=out, **settings),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([{"prompt": said, "task": task} for task in ids]),
            environment_factory=counted,
            callbacks=[Mark()],
        ).train()
    return found()


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
    about = {"benchmark": "rollouts", "model": base.describe(model)}
    about |= json.loads(out.read_bytes()) if out.exists() else {}
    for _ in range(5):
        measured["comap"].append(base.in_process([__file__, "comap", model]))
        tasks = json.dumps(measured["comap"][-1]["tasks"])
        measured["trl"].append(base.in_process([__file__, "trl", model, tasks]))
        assert measured["comap"][-1].pop("tasks") == measured["trl"][-1].pop("tasks")
        base.extend(out, about, {"update of GRPO beside TRL": base.summary(**measured)})


if __name__ == "__main__":
    if sys.argv[1] in ("comap", "trl"):
        train = train_comap if sys.argv[1] == "comap" else train_trl
        print(json.dumps(train(sys.argv[2], *map(json.loads, sys.argv[3:]))))
    else:
        main(sys.argv[1], Path(sys.argv[2]))
