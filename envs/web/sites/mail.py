"""``mail.test``: an inbox, messages to read, star, answer and forward."""

from __future__ import annotations

from typing import NamedTuple

from ...generated import Draws
from .. import pages as ui
from .base import Common, Fields, Redirect, Site, clean, matches, number, word_set, words

_MESSAGES = 60
_PLANS = 8
_KINDS = {"My new address": "address", "A few days off": "plan"}
"""The kinds of messages by their subject; all others are of the kind ``code``."""


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

    host = "mail.test"
    title = "Mail"
    menu = (("Inbox", "/inbox"), ("Compose", "/compose"), ("Sent", "/sent"))

    def __init__(self, common: Common):
        super().__init__(common)
        self.messages = self._written()
        self.start = MailState()

    def _written(self) -> tuple[Message, ...]:
        """Return the messages of the inbox, the newest first, drawn from the instance's seed."""
        vocabulary = words()
        people = self.common.people
        draws = Draws("web", self.common.seed, "mail")
        pairs = []
        for person in people:
            pairs += [(person, subject) for subject in vocabulary["subjects"]]
        ages = sorted(draws.some(range(1, 200), _MESSAGES))

        # Nobody writes twice of an address or of a plan: tasks ask for somebody's.
        senders = draws.shuffled(people)
        subjects = [("My new address", sender) for sender in senders[:10]]
        subjects += [("A few days off", sender) for sender in senders[10 : 10 + _PLANS]]
        for person, subject in draws.some(pairs, _MESSAGES - len(subjects)):
            subjects.append((subject, person))

        messages = []
        for index, (subject, sender) in enumerate(draws.shuffled(subjects)):
            kind = _KINDS.get(subject, "code")
            facts = self._facts(kind, draws)
            greeting = draws.pick(vocabulary["letters"])
            lines = (greeting, *(f"{label}: {text}" for label, text in facts.items()))
            search_words = word_set(sender, subject)
            messages.append(
                Message(index + 1, sender, subject, ages[index], kind, facts, lines, search_words)
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

    def show_inbox(self, state: MailState, fields: Fields) -> ui.Page:
        query = fields.get("q", "")
        messages = [message for message in self.messages if matches(query, message.words)]
        box = ui.search_form("/inbox", "Search mail", query)
        return self.page("Inbox", box, *ui.listing(messages, "/inbox", fields, self._row))

    show_front = show_inbox

    def _row(self, message: Message) -> tuple[ui.Node, ...]:
        name = f"{message.sender}: {message.subject}"
        return (ui.link(name, "/message", id=message.id), ui.text(self.common.day(-message.age)))

    def _of(self, field: str | None) -> Message | None:
        index = number(field, 1, len(self.messages))
        return self.messages[index - 1] if index else None

    def show_message(self, state: MailState, fields: Fields) -> ui.Page | None:
        message = self._of(fields.get("id"))
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

    def show_compose(self, state: MailState, fields: Fields) -> ui.Page:
        answered = self._of(fields.get("reply"))
        forwarded = self._of(fields.get("forward"))
        recipient = ""
        subject = ""
        body = ""
        if answered:
            recipient = answered.sender
            subject = f"Re: {answered.subject}"
        elif forwarded:
            subject = f"Fwd: {forwarded.subject}"
            body = " ".join(forwarded.lines)

        missing = [ui.text("A message needs somebody to go to.")] if fields.get("missing") else []
        return self.page(
            "New message",
            *missing,
            ui.post(
                "/compose",
                {},
                ui.textbox("To", "to", recipient),
                ui.textbox("Subject", "subject", subject),
                ui.textbox("Text", "text", body, "textarea"),
                ui.button("Send"),
            ),
        )

    def show_sent(self, state: MailState, fields: Fields) -> ui.Page | None:
        if "id" not in fields:
            links = (
                (ui.link(f"To {letter.to}: {letter.subject}", "/sent", id=letter_id),)
                for letter_id, letter in list(enumerate(state.sent, 1))[-40:]
            )
            return self.page("Sent", ui.text(f"Messages: {len(state.sent)}"), ui.rows(links))
        index = number(fields["id"], 1, len(state.sent))
        if index is None:
            return None
        letter = state.sent[index - 1]
        return self.page(
            "Message sent",
            *ui.facts({"To": letter.to, "Subject": letter.subject, "Text": letter.text}),
        )

    def post_star(self, state: MailState, fields: Fields) -> Redirect | None:
        message = self._of(fields.get("id"))
        if message is None:
            return None
        starred = tuple(sorted({*state.starred, message.id}))
        return Redirect(state._replace(starred=starred), ui.address("/message", id=message.id))

    def post_compose(self, state: MailState, fields: Fields) -> Redirect:
        letter = Letter(*(clean(fields.get(key)) for key in ("to", "subject", "text")))
        if not letter.to:
            return Redirect(state, "/compose?missing=to")
        letters = (*state.sent, letter)
        return Redirect(state._replace(sent=letters), ui.address("/sent", id=len(letters)))
