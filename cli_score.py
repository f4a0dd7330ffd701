"""`comap score`: scores of answers that lie in a folder, and of world models."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import OptionError

if TYPE_CHECKING:
    from .benchmarks.tool_answers import Answers

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `score` to the parser of `comap`; each kind sets its own ``run``.

    Example:
        >>> parser = argparse.ArgumentParser("comap")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["score", "tools", "answers", "--verdicts", "a.json"]).verdicts
        'a.json'
    """
    scorer = commands.add_parser(
        "score", help="score answers that lie in a folder, or a world model"
    )
    kinds = scorer.add_subparsers(dest="scored", required=True, metavar="WHAT")
    _add_tools(kinds)
    _add_world_model(kinds)


def _add_world_model(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `comap score world-model`."""
    from .benchmarks.world_model_scores import declare, run

    parser = kinds.add_parser(
        "world-model",
        help="Delta-F1 of any world model on a fixed set of transitions",
        description="Score a world model, trained or prompted, on transitions that stay the same.",
        epilog="example: comap score world-model --world-model retrieval --n 400 --save frozen.jsonl",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    declare(parser)


def _add_tools(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `comap score tools`."""
    parser = kinds.add_parser(
        "tools",
        help="StableToolBench's SoPR and SoWR, and what calls alone tell",
        description="Score answers of a reference pipeline, or of comap run on "
        "comap/StableToolBench-v0: SoPR and SoWR by a judge or by recorded verdicts, and metrics that "
        "need no judge. Generated tasks are judged by their own checkers.",
        epilog="example: comap score tools answer/virtual_chatgpt_cot --data-dir DIR "
        "--judge http://127.0.0.1:8000/v1#NAME --against answer/virtual_chatgpt_dfs",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_score_tools)
    parser.add_argument(
        "answers",
        metavar="ANSWERS",
        help="folder of answer files (<query_id>_<method>.json, also by group), a file of converted "
        "answers, or a folder of comap run",
    )
    judges = parser.add_mutually_exclusive_group()
    judges.add_argument(
        "--judge",
        metavar="MODEL",
        help="language model that judges: http://HOST:PORT/v1#NAME, or as for comap run --model",
    )
    judges.add_argument(
        "--verdicts",
        metavar="FILE",
        help="recorded verdicts: a reference evaluation's, or an --out",
    )
    parser.add_argument(
        "--judge-option",
        action="append",
        metavar="NAME=VALUE",
        help="option of the judge's model, such as api_key_env=NAME or timeout=60",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="of the judge (default: 0)"
    )
    parser.add_argument(
        "--runs",
        type=int,
        metavar="N",
        help="how often an answer is judged (default: 3, all that was recorded, or once by a checker)",
    )
    parser.add_argument("--against", metavar="OTHER", help="answers to be won against, for SoWR")
    parser.add_argument(
        "--against-verdicts", metavar="FILE", help="recorded verdicts on these answers"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="comparisons of a pair (default: 3)"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder with test_instruction/")
    parser.add_argument("--out", metavar="FILE", help="write the scores to this file, as JSON")


def _score_tools(args: argparse.Namespace) -> int:
    from .benchmarks.record import write_result
    from .benchmarks.terminal import print_table
    from .benchmarks.tool_answers import read_answers
    from .benchmarks.tool_scores import recorded, score_answers, scores_table

    _check(args)
    answers = read_answers(args.answers, args.data_dir)
    against = None if args.against is None else read_answers(args.against, args.data_dir)
    judge = _judge(args, answers)
    other = None
    if against is not None and args.against_verdicts is not None:
        other = recorded(args.against_verdicts, against)
    result = score_answers(
        answers,
        judge,
        against=against,
        against_judge=other,
        runs=args.runs,
        rounds=args.rounds,
        progress=lambda line: print(line, file=sys.stderr),
    )
    if args.out is not None:
        write_result(Path(args.out), result)
    print_table(scores_table(result))
    for note in result["notes"]:
        print(f"\n{note}")
    if args.out is not None:
        print(f"\nscores: {args.out}")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options that mean nothing, before anything is read or asked."""
    if args.against is None and args.against_verdicts is not None:
        raise OptionError("--against-verdicts is about the answers of --against; add that")
    if args.judge is None and (args.judge_option or args.temperature):
        raise OptionError("--judge-option and --temperature are about the model of --judge; add it")
    if not 0 <= args.temperature <= 2:
        raise OptionError(f"--temperature must be from 0 to 2, not {args.temperature}")
    if args.out is not None and Path(args.out).is_dir():
        raise OptionError(f"--out is a file, but {args.out} is a folder; name a file in it")
    if args.out is not None:
        place = next(one for one in Path(args.out).absolute().parents if one.exists())
        if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
            raise OptionError(
                f"--out cannot be written: {place} is no folder that one may write in"
            )


def _judge(args: argparse.Namespace, answers: Answers) -> Any:
    """Return the judge that the options name, or None."""
    from .benchmarks.options import pairs
    from .benchmarks.tool_scores import recorded
    from .envs.stabletoolbench.judges import LMJudge
    from .lm.create import create_language_model

    if args.verdicts is not None:
        return recorded(args.verdicts, answers)
    if args.judge is None:
        return None
    chosen = pairs(args.judge_option, "--judge-option")
    return LMJudge(create_language_model(args.judge, **chosen), args.temperature)
