"""Exchange rates and bank accounts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from .base import App, Common, Job, World, data_file, pick
from .ledger import Ledger, Row, Table, ToolError, page_of

__all__ = ["BANK", "CURRENCY", "rate_of"]

_KINDS = ("current", "savings")


def _currency_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    worths = rng.sample(range(20, 400), len(common.currencies))
    return {
        "currency": {
            code: {"name": f"{code.lower()} crown", "worth": worth / 100}
            for code, worth in zip(common.currencies, worths, strict=True)
        }
    }


def rate_of(world_tables: Mapping[str, Table], base: str, quote: str) -> float:
    """Return what one unit of a currency is worth in another."""
    table = world_tables["currency"]
    return round(float(table[base]["worth"]) / float(table[quote]["worth"]), 4)


def _codes(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    ledger.limit("currency", 3, 5)
    rows = [{"code": key, "name": row["name"]} for key, row in ledger.rows("currency")]
    return {"currencies": rows}


def _rate(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    ledger.limit("currency", 3, 5)
    base, quote = args["is_from"].upper(), args["to"].upper()
    for code in (base, quote):
        ledger.row("currency", code)
    return {"base": base, "quote": quote, "rate": rate_of(ledger.tables, base, quote)}


def _convert(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    told = _rate(ledger, args)
    if not 0 <= args["amount"] <= 1e9:
        raise ToolError("Bad value of amount: expected 0 to 1000000000")
    return told | {"amount": args["amount"], "result": round(told["rate"] * args["amount"], 2)}


def _converting(world: World, rng: random.Random) -> Job:
    base, quote = rng.sample(world.common.currencies, 2)
    amount = rng.randrange(20, 900)
    calls = (("currency.convert", {"is_from": base, "to": quote, "amount": amount}),)
    answer = {"amount": round(rate_of(world.tables, base, quote) * amount, 2)}
    return Job("currency.convert", {"base": base, "quote": quote, "amount": amount}, calls, answer)


def _comparing(world: World, rng: random.Random) -> Job:
    base, *others = rng.sample(world.common.currencies, 4)
    rates = {code: rate_of(world.tables, base, code) for code in others}
    best = max(others, key=lambda code: rates[code])
    calls = tuple(("currency.rate", {"is_from": base, "to": code}) for code in others)
    slots = {"base": base, **dict(zip(("first", "second", "third"), others, strict=True))}
    return Job("currency.best", slots, calls, {"currency": best, "rate": rates[best]})


CURRENCY = App(
    "currency",
    _currency_tables,
    {"list": _codes, "rate": _rate, "convert": _convert},
    {"currency.convert": _converting, "currency.best": _comparing},
)
"""Exchange rates: three requests in any five calls."""


def _bank_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    payees = data_file("words.json")["payees"]
    accounts: dict[str, Row] = {}
    payments: dict[str, Row] = {}
    for name in common.people[:6]:
        for kind in _KINDS:
            key = f"B-{900 + len(accounts)}"
            accounts[key] = {"owner": name, "kind": kind, "cents": rng.randrange(20_000, 900_000)}
            amounts = rng.sample(range(300, 20_000), rng.randrange(2, 7))
            for amount, payee in zip(amounts, rng.sample(payees, len(amounts)), strict=True):
                row = {"account": key, "payee": payee, "cents": amount}
                payments[f"Y-{len(payments) + 1}"] = row
    return {"account": accounts, "payment": payments, "transfer": {}}


def _accounts(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    wanted = " ".join(args["owner"].lower().split())
    found = [
        {"account_id": key, "kind": row["kind"]}
        for key, row in ledger.rows("account")
        if row["owner"].lower() == wanted
    ]
    if not found:
        raise ToolError(f"owner {args['owner'][:64]!r} not found")
    return {"accounts": found}


def _balance(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("account", args["account_id"])
    return {"account_id": args["account_id"], "balance_cents": row["cents"]}


def _payments_of(ledger: Ledger, account: str) -> list[Row]:
    """Return the payments from an account, newest first."""
    return [row for _, row in ledger.rows("payment") if row["account"] == account][::-1]


def _payments(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    ledger.row("account", args["account_id"])
    found = _payments_of(ledger, args["account_id"])
    told = [{"payee": row["payee"], "cents": row["cents"]} for row in found]
    return page_of("payments", told, args, 3)


def _transfer(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    source, target = ledger.row("account", args["source"]), ledger.row("account", args["target"])
    cents = args["cents"]
    if args["source"] == args["target"]:
        raise ToolError("Conflict: source and target are the same account")
    if not 1 <= cents <= source["cents"]:
        raise ToolError(f"Conflict: account {args['source']} has {source['cents']} cents")
    key = ledger.new_id("transfer", "X")
    values = {"source": args["source"], "target": args["target"], "cents": cents}
    changed = ledger.put("transfer", key, **values)
    changed += ledger.put("account", args["source"], cents=source["cents"] - cents)
    changed += ledger.put("account", args["target"], cents=target["cents"] + cents)
    return {"transfer_id": key, "changed": changed}


def _balance_job(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["account"])
    calls = (("bank.accounts", {"owner": row["owner"]}), ("bank.balance", {"account_id": key}))
    slots = {"name": row["owner"], "kind": row["kind"]}
    return Job("bank.balance", slots, calls, {"balance": row["cents"] / 100})


def _largest(world: World, rng: random.Random) -> Job:
    key = rng.choice(list(world.tables["account"]))
    found = _payments_of(world.ledger(), key)
    best = max(found, key=lambda row: int(row["cents"]))
    both: list[dict[str, Any]] = [{"account_id": key}, {"account_id": key, "page": 2}]
    pages = both[: (len(found) + 2) // 3]
    calls = tuple(("bank.payments", page) for page in pages)
    answer = {"payee": best["payee"], "amount": best["cents"] / 100}
    return Job("bank.largest", {"account": key}, calls, answer)


def _transferring(world: World, rng: random.Random) -> Job:
    source, target = rng.sample(list(world.tables["account"]), 2)
    amount = rng.randrange(5, 200)
    calls = (("bank.transfer", {"source": source, "target": target, "cents": amount * 100}),)
    slots = {"source": source, "target": target, "amount": amount}
    return Job("bank.transfer", slots, calls, {"transfer": "X-1"})


BANK = App(
    "bank",
    _bank_tables,
    {"accounts": _accounts, "balance": _balance, "payments": _payments, "transfer": _transfer},
    {"bank.balance": _balance_job, "bank.largest": _largest, "bank.transfer": _transferring},
)
"""Accounts: cents for units, pages of payments, balances that run out."""
