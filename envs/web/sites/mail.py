"""``mail.test``: an inbox, messages to read, star, answer and forward."""

from __future__ import annotations

from typing import NamedTuple

from ...generated import Draws
from .. import pages as ui
from .base import Common, Fields, Redirect, Site, clean, matches, number, word_set, words

_MESSAGES = 60
_PLANS = 8


class Message(NamedTuple):
    """A message: plans name a place to stay, addresses a street and a town, others a code."""

    id: int
    sender: str
    subject: str
    age: int
    kind: str
    facts: dict[str, str]
    lines: tuple[str, ...]
    words: frozenset[str]


class Letter(NamedTuple):
    """What the visitor sent."""

    to: str
    subject: str
    text: str


class MailState(NamedTuple):
    """What was sent, and which messages are starred."""

    sent: tuple[Letter, ...] = ()
    starred: tuple[int, ...] = ()


class Mail(Site):
    """The mailbox of an instance."""

    host, title = "mail.test", "Mail"
    menu = (("Inbox", "/inbox"), ("Compose", "/compose"), ("Sent", "/sent"))

    def __init__(self, common: Common):
        super().__init__(common)
        self.messages = self._written()
        self.start = MailState()

    def _written(self) -> tuple[Message, ...]:
        known, common = words(), self.common
        draws = Draws("web", common.seed, "mail")
        pairs = [(person, subject) for person in common.people for subject in known["subjects"]]
        ages = sorted(draws.some(range(1, 200), _MESSAGES))
        people = draws.shuffled(common.people)
        kinds = [("My new address", one) for one in people[:10]]
        kinds += [("A few days off", one) for one in people[10 : 10 + _PLANS]]
        kinds += [(subject, one) for one, subject in draws.some(pairs, _MESSAGES - len(kinds))]
        messages = []
        for index, (subject, sender) in enumerate(draws.shuffled(kinds)):
            kind = {"My new address": "address", "A few days off": "plan"}.get(subject, "code")
            facts = self._facts(kind, draws)
            lines = (
                draws.pick(known["letters"]),
                *(f"{key}: {said}" for key, said in facts.items()),
            )
            found = word_set(sender, subject)
            messages.append(
                Message(index + 1, sender, subject, ages[index], kind, facts, lines, found)
            )
        return tuple(messages)

    def _facts(self, kind: str, draws: Draws) -> dict[str, str]:
        if kind == "address":
            street = f"{draws.integer(1, 99)} {draws.pick(words()['streets'])}"
            return {"Street": street, "Town": draws.pick(self.common.towns)}
        if kind == "plan":
            day = self.common.day(draws.integer(10, 100))
            return {"Place": draws.pick(self.common.stays[:80]), "Check-in": day}
        return {"Code": f"{draws.pick('BCDFGHKLM')}{draws.integer(1000, 9999)}"}

    def show_inbox(self, state: MailState, given: Fields) -> ui.Page:
        query = given.get("q", "")
        found = [one for one in self.messages if matches(query, one.words)]
        box = ui.search_form("/inbox", "Search mail", query)
        return self.page("Inbox", box, *ui.listing(found, "/inbox", given, self._row))

    show_front = show_inbox

    def _row(self, message: Message) -> tuple[ui.Node, ...]:
        name = f"{message.sender}: {message.subject}"
        return (ui.link(name, "/message", id=message.id), ui.text(self.common.day(-message.age)))

    def _of(self, given: str | None) -> Message | None:
        index = number(given, 1, len(self.messages))
        return self.messages[index - 1] if index else None

    def show_message(self, state: MailState, given: Fields) -> ui.Page | None:
        message = self._of(given.get("id"))
        if message is None:
            return None
        starred = [ui.text("This message is starred.")] if message.id in state.starred else []
        return self.page(
            message.subject,
            *ui.facts({"Sender": message.sender, "Date": self.common.day(-message.age)}),
            *starred,
            *map(ui.text, message.lines),
            ui.link("Reply", "/compose", reply=message.id),
            ui.link("Forward", "/compose", forward=message.id),
            ui.post("/star", {"id": message.id}, ui.button("Star")),
        )

    def show_compose(self, state: MailState, given: Fields) -> ui.Page:
        answered, passed = self._of(given.get("reply")), self._of(given.get("forward"))
        to = answered.sender if answered else ""
        subject = (
            f"Re: {answered.subject}" if answered else f"Fwd: {passed.subject}" if passed else ""
        )
        body = " ".join(passed.lines) if passed and not answered else ""
        missing = [ui.text("A message needs somebody to go to.")] if given.get("missing") else []
        return self.page(
            "New message",
            *missing,
            ui.post(
                "/compose",
                {},
                ui.textbox("To", "to", to),
                ui.textbox("Subject", "subject", subject),
                ui.textbox("Text", "text", body, "textarea"),
                ui.button("Send"),
            ),
        )

    def show_sent(self, state: MailState, given: Fields) -> ui.Page | None:
        if "id" not in given:
            links = (
                (ui.link(f"To {one.to}: {one.subject}", "/sent", id=index + 1),)
                for index, one in list(enumerate(state.sent))[-40:]
            )
            return self.page("Sent", ui.text(f"Messages: {len(state.sent)}"), ui.rows(links))
        index = number(given["id"], 1, len(state.sent))
        if index is None:
            return None
        letter = state.sent[index - 1]
        return self.page(
            "Message sent",
            *ui.facts({"To": letter.to, "Subject": letter.subject, "Text": letter.text}),
        )

    def post_star(self, state: MailState, given: Fields) -> Redirect | None:
        message = self._of(given.get("id"))
        if message is None:
            return None
        starred = tuple(sorted({*state.starred, message.id}))
        return Redirect(state._replace(starred=starred), ui.address("/message", id=message.id))

    def post_compose(self, state: MailState, given: Fields) -> Redirect:
        letter = Letter(*(clean(given.get(key)) for key in ("to", "subject", "text")))
        if not letter.to:
            return Redirect(state, "/compose?missing=to")
        sent = (*state.sent, letter)
        return Redirect(state._replace(sent=sent), ui.address("/sent", id=len(sent)))
