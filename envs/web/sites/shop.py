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
_FIRST_ORDER = 1001
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
    """An order: what is in it, where it goes, and how far it is."""

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

    host = "shop.test"
    title = "Shop"
    menu = (("Shop", "/"), ("Search", "/search?q="), ("Cart", "/cart"), ("Orders", "/orders"))

    def __init__(self, common: Common):
        super().__init__(common)
        self.products = self._stock()

        # The visitor has ordered before: some tasks ask how far these orders are. The order of the
        # draws makes the instance: none may move.
        draws = Draws("web", common.seed, "orders")
        orders = []
        for index in range(3):
            product_id = draws.pick(self.products).id
            size = draws.pick(SIZES)
            quantity = draws.integer(1, 3)
            house_number = draws.integer(1, 99)
            street = draws.pick(words()["streets"])
            status = _STATUSES[(index + draws.integer(0, 3)) % len(_STATUSES)]
            town = draws.pick(common.towns)
            order = Order(
                entries=(Entry(product_id, size, quantity),),
                street=f"{house_number} {street}",
                town=town,
                delivery="standard",
                gift=False,
                status=status,
            )
            orders.append((_FIRST_ORDER + index, order))
        self.start = ShopState(cart=(), orders=tuple(orders))

    def _stock(self) -> tuple[Product, ...]:
        """Return the products, as many of each kind, drawn from the instance's seed."""
        vocabulary = words()
        kinds = []
        for department, goods in vocabulary["goods"].items():
            kinds += [(department, kind) for kind in goods["kinds"]]

        draws = Draws("web", self.common.seed, "stock")
        stock: list[Product] = []
        names: set[str] = set()
        while len(stock) < _ITEMS:
            department, kind = kinds[len(stock) % len(kinds)]
            name = f"{draws.pick(vocabulary['series'])} {kind}"
            if name in names:
                continue
            names.add(name)
            brand = draws.pick(vocabulary["brands"])
            color = draws.pick(vocabulary["colors"])
            material = draws.pick(vocabulary["goods"][department]["materials"])
            price = 5 * draws.integer(120, 4_000)
            rating = draws.integer(21, 50)
            stock.append(
                Product(
                    id=0,
                    name=name,
                    kind=kind,
                    department=department,
                    brand=brand,
                    material=material,
                    color=color,
                    price=price,
                    rating=rating,
                    words=word_set(name, brand, department),
                )
            )

        # Ids are given after the shuffle: the order in which a search lists them tells nothing.
        shuffled = draws.shuffled(stock)
        return tuple(product._replace(id=index) for index, product in enumerate(shuffled, 1))

    def product(self, field: str | None) -> Product | None:
        index = number(field, 1, len(self.products))
        return self.products[index - 1] if index else None

    def show_front(self, state: ShopState, fields: Fields) -> ui.Page:
        departments = words()["goods"]
        links = [(ui.link(name, "/search", q="", category=name),) for name in departments]
        return self.page(
            "Welcome to the shop", ui.search_form("/search", "Search the shop", ""), ui.rows(links)
        )

    def found(self, fields: Fields) -> list[Product]:
        """Return the products that a search finds, in its order."""
        query = fields.get("q", "")
        category = fields.get("category", "all")
        rating = fields.get("rating", "any")
        least_rating = round(10 * float(rating)) if rating in RATINGS[1:] else 0
        products = [
            product
            for product in self.products
            if product.rating >= least_rating
            and category in ("all", product.department)
            and matches(query, product.words)
        ]
        if fields.get("sort") == "price":
            products.sort(key=lambda product: (product.price, product.id))
        elif fields.get("sort") == "rating":
            products.sort(key=lambda product: (-product.rating, product.id))
        return products

    def show_search(self, state: ShopState, fields: Fields) -> ui.Page:
        query = fields.get("q", "")
        categories = ("all", *words()["goods"])
        filters = ui.search_form(
            "/search",
            "Search the shop",
            query,
            ui.select("Category", "category", categories, fields.get("category", "all")),
            ui.select("Rating of at least", "rating", RATINGS, fields.get("rating", "any")),
            ui.select("Sort by", "sort", SORTS, fields.get("sort", "relevance")),
        )
        return self.page(
            "Search", filters, *ui.listing(self.found(fields), "/search", fields, self._row)
        )

    def _row(self, product: Product) -> tuple[ui.Node, ...]:
        description = f"Price: {money(product.price)}, rating {product.rating / 10}"
        return ui.link(product.name, "/item", id=product.id), ui.text(description)

    def show_item(self, state: ShopState, fields: Fields) -> ui.Page | None:
        product = self.product(fields.get("id"))
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

    def post_cart(self, state: ShopState, fields: Fields) -> Redirect | None:
        product = self.product(fields.get("id"))
        quantity = number(fields.get("quantity"), 1, 5)
        size = fields.get("size", "")
        if product is None or quantity is None or size not in SIZES:
            return None

        # The same product in the same size is one line of the cart.
        cart = list(state.cart)
        for index, entry in enumerate(cart):
            if (entry.product, entry.size) == (product.id, size):
                cart[index] = entry._replace(quantity=min(99, entry.quantity + quantity))
                break
        else:
            cart.append(Entry(product.id, size, quantity))
        return Redirect(state._replace(cart=tuple(cart[-10:])), "/cart")

    def post_remove(self, state: ShopState, fields: Fields) -> Redirect:
        cart = tuple(
            entry
            for entry in state.cart
            if f"{entry.product}-{entry.size}" != fields.get("entry", "")
        )
        return Redirect(state._replace(cart=cart), "/cart")

    def _line(self, entry: Entry) -> str:
        product = self.products[entry.product - 1]
        cost = money(product.price * entry.quantity)
        return f"{entry.quantity} x {product.name}, {entry.size}, {cost}"

    def _total(self, entries: tuple[Entry, ...]) -> ui.Node:
        total = sum(self.products[entry.product - 1].price * entry.quantity for entry in entries)
        return ui.text(f"Total: {money(total)}")

    def show_cart(self, state: ShopState, fields: Fields) -> ui.Page:
        if not state.cart:
            return self.page("Cart", ui.text("The cart is empty."))
        lines = []
        for entry in state.cart:
            product = self.products[entry.product - 1]
            button = ui.button(f"Remove {product.name}, {entry.size}")
            remove = ui.post("/remove", {"entry": f"{entry.product}-{entry.size}"}, button)
            lines.append((ui.text(self._line(entry)), remove))
        total = self._total(state.cart)
        return self.page("Cart", ui.rows(lines), total, ui.link("Checkout", "/checkout"))

    def show_checkout(self, state: ShopState, fields: Fields) -> ui.Page:
        if not state.cart:
            return self.page("Checkout", ui.text("The cart is empty."))
        missing = [ui.text("Street and town are needed.")] if fields.get("missing") else []
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

    def post_order(self, state: ShopState, fields: Fields) -> Redirect:
        street = clean(fields.get("street"))
        town = clean(fields.get("town"))
        if not (state.cart and street and town):
            return Redirect(state, "/checkout?missing=address")

        delivery = "express" if fields.get("delivery") == "express" else "standard"
        order = Order(state.cart, street, town, delivery, fields.get("gift") == "yes")
        order_number = max(earlier_number for earlier_number, _ in state.orders) + 1
        after = ShopState((), (*state.orders, (order_number, order)))
        return Redirect(after, ui.address("/order", id=order_number))

    def show_orders(self, state: ShopState, fields: Fields) -> ui.Page:
        links = ((ui.link(f"Order {name}", "/order", id=name),) for name, _ in state.orders[-40:])
        return self.page("Orders", ui.rows(links))

    def show_order(self, state: ShopState, fields: Fields) -> ui.Page | None:
        order_number = number(fields.get("id"))
        order = dict(state.orders).get(order_number or 0)
        if order is None:
            return None
        return self.page(
            f"Order {order_number}",
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
