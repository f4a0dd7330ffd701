"""Orders of a shop and its warehouses."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from .base import App, Common, Job, World, data_file, pick
from .ledger import Ledger, Row, Table, ToolError, page_of

__all__ = ["INVENTORY", "ORDERS"]

_STATES = ("open", "packed", "shipped", "delivered")
_HOUSES = ("north", "south", "harbour")


def _order_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    customers: dict[str, Row] = {
        f"C-{10 + number}": {"name": name} for number, name in enumerate(common.people)
    }
    orders: dict[str, Row] = {}
    for key in customers:
        count = rng.randrange(1, 6)
        for place in range(count):
            newest = place == count - 1
            orders[f"O-{500 + len(orders)}"] = {
                "customer": key,
                "state": rng.choice(_STATES[:2] if newest and rng.random() < 0.7 else _STATES[2:]),
                "cents": rng.randrange(500, 90_000),
                "articles": rng.randrange(1, 7),
            }
    return {"customer": customers, "order": orders}


def _customer(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    wanted = " ".join(args["name"].lower().split())
    for key, row in ledger.rows("customer"):
        if row["name"].lower() == wanted:
            return {"customer_id": key}
    raise ToolError(f"customer {args['name'][:64]!r} not found")


def _orders_of(ledger: Ledger, customer: str) -> list[tuple[str, Row]]:
    """Return a customer's orders, newest first."""
    found = [(key, row) for key, row in ledger.rows("order") if row["customer"] == customer]
    return found[::-1]


def _list_orders(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    ledger.row("customer", args["customer_id"])
    told = [{"id": key} for key, _ in _orders_of(ledger, args["customer_id"])]
    return page_of("orders", told, args, 3)


def _order(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("order", args["order_id"])
    told = {"id": args["order_id"], "total_cents": row["cents"], "state": row["state"]}
    return told | {"articles": row["articles"]}


def _cancel(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("order", args["order_id"])
    if row["state"] not in _STATES[:2]:
        raise ToolError(f"Conflict: order {args['order_id']} is {row['state']}")
    changed = ledger.put("order", args["order_id"], state="cancelled")
    return {"order_id": args["order_id"], "changed": changed}


def _total(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["order"])
    calls = (("orders.details", {"order_id": key}),)
    return Job("orders.total", {"order": key}, calls, {"total": row["cents"] / 100})


def _newest(world: World, rng: random.Random) -> Job:
    customer, row = pick(rng, world.tables["customer"])
    newest, order = _orders_of(world.ledger(), customer)[0]
    calls = (
        ("orders.customer", {"name": row["name"]}),
        ("orders.list", {"customer_id": customer}),
        ("orders.details", {"order_id": newest}),
    )
    answer = {"order": newest, "state": order["state"]}
    return Job("orders.newest", {"name": row["name"]}, calls, answer)


def _cancelling(world: World, rng: random.Random) -> Job:
    ledger = world.ledger()
    free = [
        key
        for key in world.tables["customer"]
        if _orders_of(ledger, key)[0][1]["state"] in _STATES[:2]
    ]
    if not free:
        return _newest(world, rng)
    customer = rng.choice(free)
    name, newest = world.tables["customer"][customer]["name"], _orders_of(ledger, customer)[0][0]
    calls = (
        ("orders.customer", {"name": name}),
        ("orders.list", {"customer_id": customer}),
        ("orders.cancel", {"order_id": newest}),
    )
    return Job("orders.cancel", {"name": name}, calls, {"order": newest})


ORDERS = App(
    "orders",
    _order_tables,
    {"customer": _customer, "list": _list_orders, "details": _order, "cancel": _cancel},
    {"orders.total": _total, "orders.newest": _newest, "orders.cancel": _cancelling},
)
"""Orders: customers by number, the newest first, totals in cents, shipped ones stay."""


def _article_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    words = data_file("words.json")
    names = [f"{quality} {thing}" for quality in words["qualities"] for thing in words["things"]]
    articles: dict[str, Row] = {}
    for number, name in enumerate(rng.sample(names, 20), 70):
        stocks = dict(zip(_HOUSES, rng.sample(range(4, 60), 3), strict=True))
        articles[f"A-{number}"] = {"name": name, **stocks}
    return {"article": articles}


def _find(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    wanted = args["word"].strip().lower()
    found = [
        {"sku": key, "name": row["name"]}
        for key, row in ledger.rows("article")
        if wanted in row["name"].split()
    ]
    if not found:
        raise ToolError(f"article {wanted[:64]!r} not found: search for one word")
    return {"articles": found, "total": len(found)}


def _stock(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("article", args["sku"])
    houses = [args["warehouse"]] if "warehouse" in args else _HOUSES
    return {"sku": args["sku"], "stock": {house: row[house] for house in houses}}


def _move(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row, source, target = ledger.row("article", args["sku"]), args["source"], args["target"]
    if source == target:
        raise ToolError("Conflict: source and target are the same warehouse")
    if not 1 <= args["quantity"] <= row[source]:
        raise ToolError(f"Conflict: {source} has {row[source]} of {args['sku']}")
    values = {source: row[source] - args["quantity"], target: row[target] + args["quantity"]}
    return {"sku": args["sku"], "changed": ledger.put("article", args["sku"], **values)}


def _seeking(
    world: World, rng: random.Random
) -> tuple[str, Row, list[tuple[str, Mapping[str, Any]]]]:
    """Return an article and the calls that tell its stock."""
    key, row = pick(rng, world.tables["article"])
    word = row["name"].split()[-1]
    return key, row, [("inventory.find", {"word": word}), ("inventory.stock", {"sku": key})]


def _whole(world: World, rng: random.Random) -> Job:
    _, row, calls = _seeking(world, rng)
    total = sum(row[house] for house in _HOUSES)
    return Job("inventory.total", {"name": row["name"]}, tuple(calls), {"stock": total})


def _most(world: World, rng: random.Random) -> Job:
    _, row, calls = _seeking(world, rng)
    answer = {"warehouse": max(_HOUSES, key=lambda house: int(row[house]))}
    return Job("inventory.most", {"name": row["name"]}, tuple(calls), answer)


def _moving(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["article"])
    source, target = rng.sample(_HOUSES, 2)
    quantity = rng.randrange(1, row[source])
    slots = {"sku": key, "source": source, "target": target, "quantity": quantity}
    return Job(
        "inventory.move", slots, (("inventory.move", slots),), {"stock": row[target] + quantity}
    )


INVENTORY = App(
    "inventory",
    _article_tables,
    {"find": _find, "stock": _stock, "move": _move},
    {"inventory.total": _whole, "inventory.most": _most, "inventory.move": _moving},
)
"""Articles: searched for by one word, counted by warehouse."""
