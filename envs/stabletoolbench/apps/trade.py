"""Apps about travel, trade and money: flights, hotels, orders, inventory, currency, bank."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from .world import (
    App,
    Common,
    Job,
    Ledger,
    Row,
    Rows,
    Table,
    ToolCall,
    ToolError,
    World,
    call,
    data_file,
    index_of,
    listed,
    matching,
    not_found,
    numbered,
)


class Flights(App):
    """Timetables: airports before flights, pages, minutes for hours, seats that run out."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        aircraft = data_file("words")["aircraft"]
        codes = [city["airport"] for city in common.cities.values()]
        flights: list[Row] = []
        for _ in range(12):
            origin, destination = rng.sample(codes, 2)
            route = {"origin": origin, "destination": destination, "date": rng.choice(common.days)}
            prices = rng.sample(range(60, 400), rng.randrange(2, 7))
            hours = sorted(rng.sample(range(5, 23), len(prices)))
            flights += [
                {
                    **route,
                    "departure": f"{hour:02}:{rng.choice(('05', '20', '45'))}",
                    "price": price,
                    "minutes": rng.randrange(45, 400),
                    "seats": rng.randrange(2, 9),
                    "aircraft": rng.choice(aircraft),
                }
                for hour, price in zip(hours, prices, strict=True)
            ]
        return {"flight": numbered("FL", 101, flights), "booking": {}}

    def _of_route(self, ledger: Ledger, origin: str, destination: str, date: str) -> Rows:
        ends = {"origin": origin.upper(), "destination": destination.upper()}
        flights = ledger.where("flight", **ends, date=date)
        return sorted(flights, key=lambda item: item[1]["departure"])

    def _api_search(
        self, ledger: Ledger, origin: str, destination: str, date: str, page: int = 1
    ) -> Any:
        flights = self._of_route(ledger, origin, destination, date)
        return self.page("flights", flights, "id departure price", page)

    def _api_book(self, ledger: Ledger, flight_id: str, seats: int) -> Any:
        free = ledger.row("flight", flight_id)["seats"]
        if seats < 1:
            raise ToolError(f"Bad value of seats: expected at least 1, found {seats}")
        if seats > free:
            raise ToolError(f"Conflict: flight {flight_id} has {free} free seats")
        key = ledger.new_id("booking", "BK")
        changed = ledger.put("booking", key, flight=flight_id, seats=seats)
        changed += ledger.put("flight", flight_id, seats=free - seats)
        return {"booking_id": key, "changed": changed}

    def _job_cheapest(self, world: World, rng: random.Random) -> Job:
        row = world.pick(rng, "flight")[1]
        cities = {city["airport"]: city["name"] for city in world.common.cities.values()}
        route = {name: row[name] for name in ("origin", "destination", "date")}
        flights = self._of_route(world.ledger(), **route)
        cheapest_key, cheapest = min(flights, key=lambda item: int(item[1]["price"]))
        ends = {name: cities[row[name]] for name in ("origin", "destination")}
        airports = [call("flights.airports", city=city) for city in ends.values()]
        # Two pages at most: jobs have to fit into the calls of a task.
        calls = (*airports, *self.pages("search", min(len(flights) - 1, 5), **route))
        answer = {"flight": cheapest_key, "price": cheapest["price"]}
        return Job("flights.cheapest", {**ends, "date": row["date"]}, calls, answer)

    def _job_book(self, world: World, rng: random.Random) -> Job:
        key, row = world.pick(rng, "flight")
        seats = rng.randrange(2, row["seats"] + 1) if row["seats"] > 2 else 2
        calls = (call("flights.book", flight_id=key, seats=seats),)
        return Job("flights.book", {"flight": key, "seats": seats}, calls, {"booking": "BK-1"})


class Hotels(App):
    """Hotels: numbers before details, pages, prices in cents, rooms that run out."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        """Draw two to five hotels a city, one of them the best."""
        nouns = data_file("words")["hotel_nouns"]
        hotels: list[Row] = []
        for city in common.cities.values():
            names = rng.sample(nouns, rng.randrange(2, 6) if hotels else 2)
            best = rng.randrange(len(names))
            hotels += [
                {
                    "name": name,
                    "city": city["name"],
                    "stars": 5 if number == best else rng.randrange(1, 5),
                    "cents": rng.randrange(4_000, 30_000, 50),
                    "rooms": rng.randrange(1, 6),
                }
                for number, name in enumerate(names)
            ]
        return {"hotel": numbered("H", 11, hotels), "reservation": {}}

    def _api_reserve(self, ledger: Ledger, hotel_id: str, nights: int) -> Any:
        hotel = ledger.row("hotel", hotel_id)
        if not 1 <= nights <= 30:
            raise ToolError(f"Bad value of nights: expected 1 to 30, found {nights}")
        if hotel["rooms"] < 1:
            raise ToolError(f"Conflict: hotel {hotel_id} has no free room")
        key = ledger.new_id("reservation", "RV")
        changed = ledger.put("reservation", key, hotel=hotel_id, nights=nights)
        changed += ledger.put("hotel", hotel_id, rooms=hotel["rooms"] - 1)
        return {"reservation_id": key, "total_cents": nights * hotel["cents"], "changed": changed}

    def finding(self, world: World, key: str, row: Row) -> list[ToolCall]:
        hotels = matching(world.ledger(), "hotel", "city", row["city"])
        return self.pages("list", index_of(key, hotels), city=row["city"])

    def _job_best(self, world: World, rng: random.Random) -> Job:
        hotels = world.tables["hotel"]
        by_city: dict[str, list[str]] = {}
        for key, row in hotels.items():
            by_city.setdefault(row["city"], []).append(key)
        city = rng.choice([city for city, keys in by_city.items() if len(keys) <= 3])
        details = [call("hotels.details", hotel_id=key) for key in by_city[city]]
        (best,) = [hotels[key]["name"] for key in by_city[city] if hotels[key]["stars"] == 5]
        calls = (call("hotels.list", city=city), *details)
        return Job("hotels.best", {"city": city}, calls, {"hotel": best})

    def _job_reserve(self, world: World, rng: random.Random) -> Job:
        key, row = world.pick(rng, "hotel")
        nights = rng.randrange(2, 8)
        reserve = call("hotels.reserve", hotel_id=key, nights=nights)
        slots = {"name": row["name"], "city": row["city"], "nights": nights}
        calls = (*self.finding(world, key, row), reserve)
        return Job("hotels.reserve", slots, calls, {"reservation": "RV-1"})


_STATES = ("open", "packed", "shipped", "delivered")


class Orders(App):
    """Orders: customers by number, the newest first, totals in cents, shipped ones stay."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        """Draw up to five orders a customer; only the newest may not be shipped yet."""
        customers = numbered("C", 10, ({"name": name} for name in common.people))
        orders: list[Row] = []
        for key in customers:
            count = rng.randrange(1, 6)
            for number in range(count):
                recent = number == count - 1 and rng.random() < 0.7
                order: Row = {
                    "customer": key,
                    "state": rng.choice(_STATES[:2] if recent else _STATES[2:]),
                    "cents": rng.randrange(500, 90_000),
                    "articles": rng.randrange(1, 7),
                }
                orders.append(order)
        return {"customer": customers, "order": numbered("O", 500, orders)}

    def _api_list(self, ledger: Ledger, customer_id: str, page: int = 1) -> Any:
        ledger.row("customer", customer_id)
        return self.page("orders", ledger.where("order", customer=customer_id)[::-1], "id", page)

    def _api_cancel(self, ledger: Ledger, order_id: str) -> Any:
        state = ledger.row("order", order_id)["state"]
        if state not in _STATES[:2]:
            raise ToolError(f"Conflict: order {order_id} is {state}")
        return {"order_id": order_id, "changed": ledger.put("order", order_id, state="cancelled")}

    def _job_newest(self, world: World, rng: random.Random) -> Job:
        customer, row = world.pick(rng, "customer")
        newest, order = world.ledger().where("order", customer=customer)[-1]
        finding = self._finding(row["name"], customer)
        calls = (*finding, call("orders.details", order_id=newest))
        answer = {"order": newest, "state": order["state"]}
        return Job("orders.newest", {"name": row["name"]}, calls, answer)

    def _job_cancel(self, world: World, rng: random.Random) -> Job:
        customers = world.tables["customer"]
        ledger = world.ledger()
        newest = {key: ledger.where("order", customer=key)[-1] for key in customers}
        free = [key for key, (_, order) in newest.items() if order["state"] in _STATES[:2]]
        if not free:
            return self._job_newest(world, rng)
        customer = rng.choice(free)
        name = customers[customer]["name"]
        order, _ = newest[customer]
        calls = (*self._finding(name, customer), call("orders.cancel", order_id=order))
        return Job("orders.cancel", {"name": name}, calls, {"order": order})

    def _finding(self, name: str, customer: str) -> list[ToolCall]:
        return [call("orders.customer", name=name), call("orders.list", customer_id=customer)]


_HOUSES = ("north", "south", "harbour")


class Inventory(App):
    """Articles: searched for by one word, counted by warehouse."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        words = data_file("words")
        names = [
            f"{quality} {thing}" for quality in words["qualities"] for thing in words["things"]
        ]
        articles = (
            {"name": name, **dict(zip(_HOUSES, rng.sample(range(4, 60), 3), strict=True))}
            for name in rng.sample(names, 20)
        )
        return {"article": numbered("A", 70, articles)}

    def _api_find(self, ledger: Ledger, word: str) -> Any:
        word = word.strip().lower()
        articles = [item for item in ledger.rows("article") if word in item[1]["name"].split()]
        if not articles:
            raise not_found("article", word, ": search for one word")
        return {"articles": listed(articles, "sku=id name"), "total": len(articles)}

    def _api_stock(self, ledger: Ledger, sku: str, warehouse: str | None = None) -> Any:
        row = ledger.row("article", sku)
        houses = _HOUSES if warehouse is None else (warehouse,)
        return {"sku": sku, "stock": {house: row[house] for house in houses}}

    def _api_move(self, ledger: Ledger, sku: str, source: str, target: str, quantity: int) -> Any:
        row = ledger.row("article", sku)
        if source == target:
            raise ToolError("Conflict: source and target are the same warehouse")
        if not 1 <= quantity <= row[source]:
            raise ToolError(f"Conflict: {source} has {row[source]} of {sku}")
        values = {source: row[source] - quantity, target: row[target] + quantity}
        return {"sku": sku, "changed": ledger.put("article", sku, **values)}

    def _drawn(self, world: World, rng: random.Random) -> tuple[Row, tuple[ToolCall, ...]]:
        key, row = world.pick(rng, "article")
        find = call("inventory.find", word=row["name"].split()[-1])
        return row, (find, call("inventory.stock", sku=key))

    def _job_total(self, world: World, rng: random.Random) -> Job:
        row, calls = self._drawn(world, rng)
        total = sum(row[house] for house in _HOUSES)
        return Job("inventory.total", {"name": row["name"]}, calls, {"stock": total})

    def _job_most(self, world: World, rng: random.Random) -> Job:
        row, calls = self._drawn(world, rng)
        answer = {"warehouse": max(_HOUSES, key=lambda house: int(row[house]))}
        return Job("inventory.most", {"name": row["name"]}, calls, answer)

    def _job_move(self, world: World, rng: random.Random) -> Job:
        key, row = world.pick(rng, "article")
        source, target = rng.sample(_HOUSES, 2)
        quantity = rng.randrange(1, row[source])
        slots = {"sku": key, "source": source, "target": target, "quantity": quantity}
        calls = (call("inventory.move", **slots),)
        return Job("inventory.move", slots, calls, {"stock": row[target] + quantity})


class Currency(App):
    """Exchange rates: three requests in any five calls."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        worths = rng.sample(range(20, 400), len(common.currencies))
        return {
            "currency": {
                code: {"name": f"{code.lower()} crown", "worth": worth / 100}
                for code, worth in zip(common.currencies, worths, strict=True)
            }
        }

    def _api_list(self, ledger: Ledger) -> Any:
        ledger.limit("currency", 3, 5)
        return {"currencies": listed(ledger.rows("currency"), "code=id name")}

    def _api_rate(self, ledger: Ledger, is_from: str, to: str) -> Any:
        ledger.limit("currency", 3, 5)
        base = is_from.upper()
        quote = to.upper()
        for code in (base, quote):
            ledger.row("currency", code)
        return {"base": base, "quote": quote, "rate": rate_of(ledger.tables, base, quote)}

    def _api_convert(self, ledger: Ledger, is_from: str, to: str, amount: float) -> Any:
        rate = self._api_rate(ledger, is_from, to)
        if not 0 <= amount <= 1e9:
            raise ToolError("Bad value of amount: expected 0 to 1000000000")
        return {**rate, "amount": amount, "result": round(rate["rate"] * amount, 2)}

    def _job_convert(self, world: World, rng: random.Random) -> Job:
        base, quote = rng.sample(world.common.currencies, 2)
        units = rng.randrange(20, 900)
        convert, amount = conversion(world, base, quote, units)
        slots = {"base": base, "quote": quote, "amount": units}
        return Job("currency.convert", slots, (convert,), {"amount": amount})

    def _job_best(self, world: World, rng: random.Random) -> Job:
        base, *others = rng.sample(world.common.currencies, 4)
        rates = {code: rate_of(world.tables, base, code) for code in others}
        best = max(others, key=lambda code: rates[code])
        calls = tuple(call("currency.rate", is_from=base, to=code) for code in others)
        slots = {"base": base, **dict(zip(("first", "second", "third"), others, strict=True))}
        return Job("currency.best", slots, calls, {"currency": best, "rate": rates[best]})


def rate_of(tables: Mapping[str, Table], base: str, quote: str) -> float:
    """Return what one unit of a currency is worth in another."""
    table = tables["currency"]
    return round(float(table[base]["worth"]) / float(table[quote]["worth"]), 4)


def conversion(world: World, base: str, quote: str, amount: float) -> tuple[ToolCall, float]:
    """Return the call that converts an amount, and what it answers."""
    convert = call("currency.convert", is_from=base, to=quote, amount=amount)
    return convert, round(rate_of(world.tables, base, quote) * amount, 2)


class Bank(App):
    """Accounts: cents for units, pages of payments, balances that run out."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        payees = data_file("words")["payees"]
        accounts: dict[str, Row] = {}
        payments: list[Row] = []
        for name in common.people[:6]:
            for kind in ("current", "savings"):
                key = f"B-{900 + len(accounts)}"
                cents = rng.randrange(20_000, 900_000)
                accounts[key] = {"owner": name, "kind": kind, "cents": cents}
                amounts = rng.sample(range(300, 20_000), rng.randrange(2, 7))
                payments += [
                    {"account": key, "payee": payee, "cents": amount}
                    for amount, payee in zip(amounts, rng.sample(payees, len(amounts)), strict=True)
                ]
        return {"account": accounts, "payment": numbered("Y", 1, payments), "transfer": {}}

    def _api_payments(self, ledger: Ledger, account_id: str, page: int = 1) -> Any:
        ledger.row("account", account_id)
        return self.page(
            "payments", ledger.where("payment", account=account_id)[::-1], "payee cents", page
        )

    def _api_transfer(self, ledger: Ledger, source: str, target: str, cents: int) -> Any:
        payer = ledger.row("account", source)
        payee = ledger.row("account", target)
        if source == target:
            raise ToolError("Conflict: source and target are the same account")
        if not 1 <= cents <= payer["cents"]:
            raise ToolError(f"Conflict: account {source} has {payer['cents']} cents")
        key = ledger.new_id("transfer", "X")
        changed = ledger.put("transfer", key, source=source, target=target, cents=cents)
        changed += ledger.put("account", source, cents=payer["cents"] - cents)
        changed += ledger.put("account", target, cents=payee["cents"] + cents)
        return {"transfer_id": key, "changed": changed}

    def finding(self, world: World, key: str, row: Row) -> list[ToolCall]:
        return [call("bank.accounts", owner=row["owner"])]

    def _job_largest(self, world: World, rng: random.Random) -> Job:
        key = world.pick(rng, "account")[0]
        # The newest first, as the API lists them: of equal amounts that one counts.
        payments = world.ledger().where("payment", account=key)[::-1]
        _, largest = max(payments, key=lambda item: int(item[1]["cents"]))
        calls = tuple(self.pages("payments", len(payments) - 1, account_id=key))
        answer = {"payee": largest["payee"], "amount": largest["cents"] / 100}
        return Job("bank.largest", {"account": key}, calls, answer)

    def _job_transfer(self, world: World, rng: random.Random) -> Job:
        source, target = rng.sample(list(world.tables["account"]), 2)
        amount = rng.randrange(5, 200)
        calls = (call("bank.transfer", source=source, target=target, cents=amount * 100),)
        slots = {"source": source, "target": target, "amount": amount}
        return Job("bank.transfer", slots, calls, {"transfer": "X-1"})
