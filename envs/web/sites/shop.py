"""``shop.test``: a shop with search, items, a cart, a checkout and orders."""

from __future__ import annotations

from typing import NamedTuple

from ...generated import Draws
from .. import pages as ui
from .base import Common, Fields, Redirect, Site, clean, matches, number, word_set, words

SIZES = ("small", "medium", "large")
QUANTITIES = ("1", "2", "3", "4", "5")
RATINGS = ("any", "3", "4", "4.5")
SORTS = ("relevance", "price", "rating")
_ITEMS = 200
_STATUSES = ("in preparation", "on its way", "delivered", "returned")


class Product(NamedTuple):
    """Something that the shop sells; the price in cents, the rating in tenths."""

    id: int
    name: str
    kind: str
    department: str
    brand: str
    material: str
    color: str
    price: int
    rating: int
    words: frozenset[str]


class Entry(NamedTuple):
    """A line of a cart or of an order."""

    product: int
    size: str
    quantity: int


class Order(NamedTuple):
    """An order."""

    entries: tuple[Entry, ...]
    street: str
    town: str
    delivery: str
    gift: bool
    status: str = "placed"


class ShopState(NamedTuple):
    """The cart, and the orders by number."""

    cart: tuple[Entry, ...]
    orders: tuple[tuple[int, Order], ...]


def money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


class Shop(Site):
    """The shop of an instance."""

    host, title = "shop.test", "Shop"
    menu = (("Shop", "/"), ("Search", "/search?q="), ("Cart", "/cart"), ("Orders", "/orders"))

    def __init__(self, common: Common):
        super().__init__(common)
        self.products = self._stock()
        draws = Draws("web", common.seed, "orders")
        orders = []
        for index in range(3):
            product = draws.pick(self.products).id
            entries = (Entry(product, draws.pick(SIZES), draws.integer(1, 3)),)
            street = f"{draws.integer(1, 99)} {draws.pick(words()['streets'])}"
            status = _STATUSES[(index + draws.integer(0, 3)) % 4]
            order = Order(entries, street, draws.pick(common.towns), "standard", False, status)
            orders.append((1001 + index, order))
        self.start = ShopState((), tuple(orders))

    def _stock(self) -> tuple[Product, ...]:
        known, stock, seen = words(), list[Product](), set[str]()
        kinds = [(name, kind) for name, goods in known["goods"].items() for kind in goods["kinds"]]
        draws = Draws("web", self.common.seed, "stock")
        while len(stock) < _ITEMS:
            department, kind = kinds[len(stock) % len(kinds)]
            name = f"{draws.pick(known['series'])} {kind}"
            if name in seen:
                continue
            seen.add(name)
            brand, color = draws.pick(known["brands"]), draws.pick(known["colors"])
            material = draws.pick(known["goods"][department]["materials"])
            price, rating = 5 * draws.integer(120, 4_000), draws.integer(21, 50)
            found = word_set(name, brand, department)
            stock.append(
                Product(0, name, kind, department, brand, material, color, price, rating, found)
            )
        mixed = draws.shuffled(stock)
        return tuple(one._replace(id=index + 1) for index, one in enumerate(mixed))

    def product(self, given: str | None) -> Product | None:
        index = number(given, 1, len(self.products))
        return self.products[index - 1] if index else None

    def show_front(self, state: ShopState, given: Fields) -> ui.Page:
        departments = words()["goods"]
        links = [(ui.link(name, "/search", q="", category=name),) for name in departments]
        return self.page(
            "Welcome to the shop", ui.search_form("/search", "Search the shop", ""), ui.rows(links)
        )

    def found(self, given: Fields) -> list[Product]:
        """Return the products that a search finds, in its order."""
        query, category = given.get("q", ""), given.get("category", "all")
        rating = given.get("rating", "any")
        least = round(10 * float(rating)) if rating in RATINGS[1:] else 0
        found = [
            product
            for product in self.products
            if product.rating >= least
            and category in ("all", product.department)
            and matches(query, product.words)
        ]
        if given.get("sort") == "price":
            found.sort(key=lambda product: (product.price, product.id))
        elif given.get("sort") == "rating":
            found.sort(key=lambda product: (-product.rating, product.id))
        return found

    def show_search(self, state: ShopState, given: Fields) -> ui.Page:
        query = given.get("q", "")
        categories = ("all", *words()["goods"])
        filters = ui.search_form(
            "/search",
            "Search the shop",
            query,
            ui.select("Category", "category", categories, given.get("category", "all")),
            ui.select("Rating of at least", "rating", RATINGS, given.get("rating", "any")),
            ui.select("Sort by", "sort", SORTS, given.get("sort", "relevance")),
        )
        return self.page(
            "Search", filters, *ui.listing(self.found(given), "/search", given, self._row)
        )

    def _row(self, product: Product) -> tuple[ui.Node, ...]:
        said = f"Price: {money(product.price)}, rating {product.rating / 10}"
        return ui.link(product.name, "/item", id=product.id), ui.text(said)

    def show_item(self, state: ShopState, given: Fields) -> ui.Page | None:
        product = self.product(given.get("id"))
        if product is None:
            return None
        return self.page(
            product.name,
            ui.image(f"Picture of the {product.kind}"),
            *ui.facts(
                {
                    "Price": money(product.price),
                    "Rating": product.rating / 10,
                    "Brand": product.brand,
                    "Material": product.material,
                    "Color": product.color,
                }
            ),
            ui.post(
                "/cart",
                {"id": product.id},
                ui.select("Size", "size", SIZES),
                ui.select("Quantity", "quantity", QUANTITIES),
                ui.button("Add to cart"),
            ),
        )

    def post_cart(self, state: ShopState, given: Fields) -> Redirect | None:
        product, quantity = self.product(given.get("id")), number(given.get("quantity"), 1, 5)
        size = given.get("size", "")
        if product is None or quantity is None or size not in SIZES:
            return None
        cart = list(state.cart)
        for index, entry in enumerate(cart):
            if (entry.product, entry.size) == (product.id, size):
                cart[index] = entry._replace(quantity=min(99, entry.quantity + quantity))
                break
        else:
            cart.append(Entry(product.id, size, quantity))
        return Redirect(state._replace(cart=tuple(cart[-10:])), "/cart")

    def post_remove(self, state: ShopState, given: Fields) -> Redirect:
        cart = tuple(
            entry
            for entry in state.cart
            if f"{entry.product}-{entry.size}" != given.get("entry", "")
        )
        return Redirect(state._replace(cart=cart), "/cart")

    def _line(self, entry: Entry) -> str:
        product = self.products[entry.product - 1]
        cost = money(product.price * entry.quantity)
        return f"{entry.quantity} x {product.name}, {entry.size}, {cost}"

    def _total(self, entries: tuple[Entry, ...]) -> ui.Node:
        total = sum(self.products[entry.product - 1].price * entry.quantity for entry in entries)
        return ui.text(f"Total: {money(total)}")

    def show_cart(self, state: ShopState, given: Fields) -> ui.Page:
        if not state.cart:
            return self.page("Cart", ui.text("The cart is empty."))
        parts = [
            (
                ui.text(self._line(entry)),
                ui.post(
                    "/remove",
                    {"entry": f"{entry.product}-{entry.size}"},
                    ui.button(f"Remove {self.products[entry.product - 1].name}, {entry.size}"),
                ),
            )
            for entry in state.cart
        ]
        total = self._total(state.cart)
        return self.page("Cart", ui.rows(parts), total, ui.link("Checkout", "/checkout"))

    def show_checkout(self, state: ShopState, given: Fields) -> ui.Page:
        if not state.cart:
            return self.page("Checkout", ui.text("The cart is empty."))
        missing = [ui.text("Street and town are needed.")] if given.get("missing") else []
        return self.page(
            "Checkout",
            *missing,
            ui.rows((ui.text(self._line(entry)),) for entry in state.cart),
            self._total(state.cart),
            ui.form(
                "/order",
                ui.textbox("Street", "street"),
                ui.textbox("Town", "town"),
                ui.radios("Delivery", "delivery", ("standard", "express"), "standard"),
                ui.checkbox("Gift wrap", "gift"),
                ui.button("Place order"),
                method="post",
            ),
        )

    def post_order(self, state: ShopState, given: Fields) -> Redirect:
        street, town = clean(given.get("street")), clean(given.get("town"))
        if not (state.cart and street and town):
            return Redirect(state, "/checkout?missing=address")
        delivery = "express" if given.get("delivery") == "express" else "standard"
        order = Order(state.cart, street, town, delivery, given.get("gift") == "yes")
        name = max(one for one, _ in state.orders) + 1
        return Redirect(
            ShopState((), (*state.orders, (name, order))), ui.address("/order", id=name)
        )

    def show_orders(self, state: ShopState, given: Fields) -> ui.Page:
        links = ((ui.link(f"Order {name}", "/order", id=name),) for name, _ in state.orders[-40:])
        return self.page("Orders", ui.rows(links))

    def show_order(self, state: ShopState, given: Fields) -> ui.Page | None:
        name = number(given.get("id"))
        order = dict(state.orders).get(name or 0)
        if order is None:
            return None
        return self.page(
            f"Order {name}",
            ui.text(f"Status: {order.status}"),
            ui.rows((ui.text(self._line(entry)),) for entry in order.entries),
            self._total(order.entries),
            *ui.facts(
                {
                    "Street": order.street,
                    "Town": order.town,
                    "Delivery": order.delivery,
                    "Gift wrap": "yes" if order.gift else "no",
                }
            ),
        )
