"""``mail.test``: an inbox, messages to read, star, answer and forward."""

from __future__ import annotations

from typing import NamedTuple

from ...generated import Draws
from ..pages import Node, Page, button, form, hidden, link, rows, text, textbox
from .base import (
    Common,
    Fields,
    Redirect,
    Site,
    address,
    clean,
    labeled,
    listing,
    matches,
    number,
    search_form,
    word_set,
    words,
)

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
        self.get = {
            "/": self._inbox,
            "/inbox": self._inbox,
            "/message": self._message,
            "/compose": self._compose,
            "/sent": self._sent,
        }
        self.post = {"/star": self._star, "/compose": self._send}

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

    def records(self, state: MailState) -> set[tuple[str, ...]]:
        found = {("sent", *(part.lower() for part in letter)) for letter in state.sent}
        starred = (self.messages[index - 1] for index in state.starred)
        return found | {("starred", one.sender, one.subject) for one in starred}

    def _inbox(self, state: MailState, given: Fields) -> Page:
        query = given.get("q", "")
        found = [one for one in self.messages if matches(query, one.words)]
        box = search_form("/inbox", "Search mail", query)
        return self.page("Inbox", box, *listing(found, "/inbox", given, self._row))

    def _row(self, message: Message) -> tuple[Node, ...]:
        name = f"{message.sender}: {message.subject}"
        return (
            link(name, address("/message", id=message.id)),
            text(self.common.day(-message.age)),
        )

    def _of(self, given: str | None) -> Message | None:
        index = number(given, 1, len(self.messages))
        return self.messages[index - 1] if index else None

    def _message(self, state: MailState, given: Fields) -> Page | None:
        message = self._of(given.get("id"))
        if message is None:
            return None
        starred = [text("This message is starred.")] if message.id in state.starred else []
        return self.page(
            message.subject,
            labeled("Sender", message.sender),
            labeled("Date", self.common.day(-message.age)),
            *starred,
            *map(text, message.lines),
            link("Reply", address("/compose", reply=message.id)),
            link("Forward", address("/compose", forward=message.id)),
            form("/star", hidden("id", str(message.id)), button("Star"), method="post"),
        )

    def _compose(self, state: MailState, given: Fields) -> Page:
        answered, passed = self._of(given.get("reply")), self._of(given.get("forward"))
        to = answered.sender if answered else ""
        subject = (
            f"Re: {answered.subject}" if answered else f"Fwd: {passed.subject}" if passed else ""
        )
        body = " ".join(passed.lines) if passed and not answered else ""
        missing = [text("A message needs somebody to go to.")] if given.get("missing") else []
        return self.page(
            "New message",
            *missing,
            form(
                "/compose",
                textbox("To", "to", to),
                textbox("Subject", "subject", subject),
                textbox("Text", "text", body, "textarea"),
                button("Send"),
                method="post",
            ),
        )

    def _sent(self, state: MailState, given: Fields) -> Page | None:
        if "id" not in given:
            links = (
                (link(f"To {one.to}: {one.subject}", address("/sent", id=index + 1)),)
                for index, one in list(enumerate(state.sent))[-40:]
            )
            return self.page("Sent", labeled("Messages", len(state.sent)), rows(links))
        index = number(given["id"], 1, len(state.sent))
        if index is None:
            return None
        letter = state.sent[index - 1]
        return self.page(
            "Message sent",
            labeled("To", letter.to),
            labeled("Subject", letter.subject),
            labeled("Text", letter.text),
        )

    def _star(self, state: MailState, given: Fields) -> Redirect | None:
        message = self._of(given.get("id"))
        if message is None:
            return None
        starred = tuple(sorted({*state.starred, message.id}))
        return Redirect(state._replace(starred=starred), address("/message", id=message.id))

    def _send(self, state: MailState, given: Fields) -> Redirect:
        letter = Letter(*(clean(given.get(key)) for key in ("to", "subject", "text")))
        if not letter.to:
            return Redirect(state, "/compose?missing=to")
        sent = (*state.sent, letter)
        return Redirect(state._replace(sent=sent), address("/sent", id=len(sent)))
