"""``forum.test``: boards, threads, replies and votes."""

from __future__ import annotations

from typing import NamedTuple

from ...generated import Draws
from .. import pages as ui
from .base import Common, Fields, Redirect, Site, clean, number, words

SORTS = ("most replies", "newest", "most votes")
_THREADS = 60
_ME = "you"


class Thread(NamedTuple):
    """A thread; `age` is in days, and each reply is an author and a text."""

    id: int
    board: str
    title: str
    author: str
    age: int
    text: str
    votes: int
    replies: tuple[tuple[str, str], ...]


class ForumState(NamedTuple):
    """What the visitor did: threads, replies by thread, and threads voted for."""

    threads: tuple[Thread, ...] = ()
    replies: tuple[tuple[int, str], ...] = ()
    votes: tuple[int, ...] = ()


class Forum(Site):
    """The forum of an instance."""

    host = "forum.test"
    title = "Forum"
    menu = (("Forum", "/"),)

    def __init__(self, common: Common):
        super().__init__(common)
        self.threads = self._written()
        self.start = ForumState()

    def _written(self) -> tuple[Thread, ...]:
        """Return the threads as they are before the visitor comes, drawn from the instance's seed."""
        vocabulary = words()
        draws = Draws("web", self.common.seed, "forum")
        titles = []
        for board in vocabulary["boards"]:
            titles += [(board, topic) for topic in vocabulary["topics"]]

        # All ages and all numbers of votes differ, so that "the newest" and "most votes" mean one thread.
        ages = draws.shuffled(range(1, _THREADS + 1))
        votes = draws.shuffled(range(_THREADS))
        threads = []
        for index, (board, topic) in enumerate(draws.shuffled(titles)):
            replies = tuple(
                (draws.pick(self.common.people), draws.pick(vocabulary["remarks"]))
                for _ in range(draws.integer(0, 7))
            )
            author = draws.pick(self.common.people)
            opening = draws.pick(vocabulary["openings"])
            title = f"{board}: {topic}"
            threads.append(
                Thread(index + 1, board, title, author, ages[index], opening, votes[index], replies)
            )
        return tuple(threads)

    def _all(self, state: ForumState) -> tuple[Thread, ...]:
        """Return all threads, with the visitor's replies and votes."""
        voted_ids = set(state.votes)
        if not (state.replies or voted_ids or state.threads):
            return self.threads

        threads = []
        for thread in (*self.threads, *state.threads):
            own_replies = tuple((_ME, text) for to_id, text in state.replies if to_id == thread.id)
            votes = thread.votes + (thread.id in voted_ids)
            threads.append(thread._replace(votes=votes, replies=thread.replies + own_replies))
        return tuple(threads)

    def _find(self, state: ForumState, field: str | None) -> Thread | None:
        thread_id = number(field)
        return next((thread for thread in self._all(state) if thread.id == thread_id), None)

    def show_front(self, state: ForumState, fields: Fields) -> ui.Page:
        boards = words()["boards"]
        return self.page(
            "Boards", ui.rows((ui.link(board, "/board", b=board),) for board in boards)
        )

    def board(self, state: ForumState, name: str, sort: str) -> list[Thread]:
        """Return the threads of a board in an order."""
        threads = [thread for thread in self._all(state) if thread.board == name]
        if sort == "newest":
            return sorted(threads, key=lambda thread: (thread.age, -thread.id))
        if sort == "most votes":
            return sorted(threads, key=lambda thread: (-thread.votes, thread.id))
        return sorted(threads, key=lambda thread: (-len(thread.replies), thread.id))

    def show_board(self, state: ForumState, fields: Fields) -> ui.Page | None:
        name = fields.get("b", "")
        sort = fields.get("sort", SORTS[0])
        if name not in words()["boards"]:
            return None
        sort_by = ui.select("Sort by", "sort", SORTS, sort)
        sort_form = ui.form("/board", ui.hidden("b", name), sort_by, ui.button("Sort"))
        threads = ui.listing(self.board(state, name, sort), "/board", fields, self._row)
        return self.page(name, sort_form, ui.link("New thread", "/new", b=name), *threads)

    def _row(self, thread: Thread) -> tuple[ui.Node, ...]:
        counts = f"{len(thread.replies)} replies, {thread.votes} votes"
        return ui.link(thread.title, "/thread", id=thread.id), ui.text(counts)

    def show_thread(self, state: ForumState, fields: Fields) -> ui.Page | None:
        thread = self._find(state, fields.get("id"))
        if thread is None:
            return None

        if thread.author == _ME:
            author = ui.text(_ME)  # the visitor has no page
        else:
            author = ui.link(thread.author, "/user", n=thread.author)
        own_vote = [ui.text("You voted for this.")] if thread.id in state.votes else []
        return self.page(
            thread.title,
            ui.text("Written by:"),
            author,
            ui.text(f"Date: {self.common.day(-thread.age)}"),
            ui.text(thread.text or "(no text)"),
            ui.text(f"Votes: {thread.votes}"),
            *own_vote,
            ui.rows((ui.text(f"{name} writes: {text}"),) for name, text in thread.replies[-12:]),
            ui.post("/vote", {"id": thread.id}, ui.button("Upvote")),
            ui.post(
                "/reply",
                {"id": thread.id},
                ui.textbox("Your reply", "text", role="textarea"),
                ui.button("Reply"),
            ),
        )

    def show_user(self, state: ForumState, fields: Fields) -> ui.Page | None:
        name = fields.get("n", "")
        if name not in self.common.people:
            return None
        year, town = self.member(name)
        threads = [thread for thread in self.threads if thread.author == name]
        return self.page(
            name,
            *ui.facts({"Member since": year, "Lives in": town}),
            ui.rows((ui.link(thread.title, "/thread", id=thread.id),) for thread in threads[:20]),
        )

    def member(self, name: str) -> tuple[int, str]:
        """Return since which year somebody is a member, and where they live."""
        # Of a seed of its own: whom one asks about first makes no difference.
        draws = Draws("web", self.common.seed, "user", name)
        return draws.integer(2012, 2030), draws.pick(self.common.towns)

    def show_new(self, state: ForumState, fields: Fields) -> ui.Page | None:
        name = fields.get("b", "")
        if name not in words()["boards"]:
            return None
        missing = [ui.text("A title is needed.")] if fields.get("missing") else []
        return self.page(
            f"New thread in {name}",
            *missing,
            ui.post(
                "/new",
                {"b": name},
                ui.textbox("Title", "title"),
                ui.textbox("Text", "text", role="textarea"),
                ui.button("Post thread"),
            ),
        )

    def post_vote(self, state: ForumState, fields: Fields) -> Redirect | None:
        thread = self._find(state, fields.get("id"))
        if thread is None:
            return None
        votes = tuple(sorted({*state.votes, thread.id}))
        return Redirect(state._replace(votes=votes), ui.address("/thread", id=thread.id))

    def post_reply(self, state: ForumState, fields: Fields) -> Redirect | None:
        thread = self._find(state, fields.get("id"))
        text = clean(fields.get("text"))
        if thread is None:
            return None
        if text:
            state = state._replace(replies=(*state.replies, (thread.id, text)))
        return Redirect(state, ui.address("/thread", id=thread.id))

    def post_new(self, state: ForumState, fields: Fields) -> Redirect | None:
        name = fields.get("b", "")
        title = clean(fields.get("title"))
        if name not in words()["boards"]:
            return None
        if not title:
            return Redirect(state, ui.address("/new", b=name, missing="title"))
        thread_id = len(self.threads) + len(state.threads) + 1
        thread = Thread(thread_id, name, title, _ME, 0, clean(fields.get("text")), 0, ())
        return Redirect(
            state._replace(threads=(*state.threads, thread)), ui.address("/thread", id=thread_id)
        )
