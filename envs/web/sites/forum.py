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

    host, title = "forum.test", "Forum"
    menu = (("Forum", "/"),)

    def __init__(self, common: Common):
        super().__init__(common)
        self.threads = self._written()
        self.start = ForumState()

    def _written(self) -> tuple[Thread, ...]:
        known, draws = words(), Draws("web", self.common.seed, "forum")
        titles = [(board, topic) for board in known["boards"] for topic in known["topics"]]
        ages = draws.shuffled(range(1, _THREADS + 1))
        votes = draws.shuffled(range(_THREADS))
        threads = []
        for index, (board, topic) in enumerate(draws.shuffled(titles)):
            replies = tuple(
                (draws.pick(self.common.people), draws.pick(known["remarks"]))
                for _ in range(draws.integer(0, 7))
            )
            author, opening = draws.pick(self.common.people), draws.pick(known["openings"])
            title = f"{board}: {topic}"
            threads.append(
                Thread(index + 1, board, title, author, ages[index], opening, votes[index], replies)
            )
        return tuple(threads)

    def _all(self, state: ForumState) -> tuple[Thread, ...]:
        """Return all threads, with the visitor's replies and votes."""
        said, voted = state.replies, set(state.votes)
        if not (said or voted or state.threads):
            return self.threads
        return tuple(
            one._replace(
                votes=one.votes + (one.id in voted),
                replies=one.replies + tuple((_ME, words) for to, words in said if to == one.id),
            )
            for one in (*self.threads, *state.threads)
        )

    def _find(self, state: ForumState, given: str | None) -> Thread | None:
        index = number(given)
        return next((one for one in self._all(state) if one.id == index), None)

    def show_front(self, state: ForumState, given: Fields) -> ui.Page:
        boards = words()["boards"]
        return self.page(
            "Boards", ui.rows((ui.link(board, "/board", b=board),) for board in boards)
        )

    def board(self, state: ForumState, name: str, sort: str) -> list[Thread]:
        """Return the threads of a board in an order."""
        found = [one for one in self._all(state) if one.board == name]
        if sort == "newest":
            return sorted(found, key=lambda one: (one.age, -one.id))
        if sort == "most votes":
            return sorted(found, key=lambda one: (-one.votes, one.id))
        return sorted(found, key=lambda one: (-len(one.replies), one.id))

    def show_board(self, state: ForumState, given: Fields) -> ui.Page | None:
        name, sort = given.get("b", ""), given.get("sort", SORTS[0])
        if name not in words()["boards"]:
            return None
        by = ui.select("Sort by", "sort", SORTS, sort)
        order = ui.form("/board", ui.hidden("b", name), by, ui.button("Sort"))
        found = ui.listing(self.board(state, name, sort), "/board", given, self._row)
        return self.page(name, order, ui.link("New thread", "/new", b=name), *found)

    def _row(self, thread: Thread) -> tuple[ui.Node, ...]:
        said = f"{len(thread.replies)} replies, {thread.votes} votes"
        return ui.link(thread.title, "/thread", id=thread.id), ui.text(said)

    def show_thread(self, state: ForumState, given: Fields) -> ui.Page | None:
        thread = self._find(state, given.get("id"))
        if thread is None:
            return None
        by = [ui.text("Written by:")]
        known = thread.author != _ME
        by.append(ui.link(thread.author, "/user", n=thread.author) if known else ui.text(_ME))
        voted = [ui.text("You voted for this.")] if thread.id in state.votes else []
        return self.page(
            thread.title,
            *by,
            ui.text(f"Date: {self.common.day(-thread.age)}"),
            ui.text(thread.text or "(no text)"),
            ui.text(f"Votes: {thread.votes}"),
            *voted,
            ui.rows(
                (ui.text(f"{author} writes: {said}"),) for author, said in thread.replies[-12:]
            ),
            ui.post("/vote", {"id": thread.id}, ui.button("Upvote")),
            ui.post(
                "/reply",
                {"id": thread.id},
                ui.textbox("Your reply", "text", role="textarea"),
                ui.button("Reply"),
            ),
        )

    def show_user(self, state: ForumState, given: Fields) -> ui.Page | None:
        name = given.get("n", "")
        if name not in self.common.people:
            return None
        since, town = self.member(name)
        threads = [one for one in self.threads if one.author == name]
        return self.page(
            name,
            *ui.facts({"Member since": since, "Lives in": town}),
            ui.rows((ui.link(one.title, "/thread", id=one.id),) for one in threads[:20]),
        )

    def member(self, name: str) -> tuple[int, str]:
        """Return since when somebody is a member, and where they live."""
        draws = Draws("web", self.common.seed, "user", name)
        return draws.integer(2012, 2030), draws.pick(self.common.towns)

    def show_new(self, state: ForumState, given: Fields) -> ui.Page | None:
        name = given.get("b", "")
        if name not in words()["boards"]:
            return None
        missing = [ui.text("A title is needed.")] if given.get("missing") else []
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

    def post_vote(self, state: ForumState, given: Fields) -> Redirect | None:
        thread = self._find(state, given.get("id"))
        if thread is None:
            return None
        votes = tuple(sorted({*state.votes, thread.id}))
        return Redirect(state._replace(votes=votes), ui.address("/thread", id=thread.id))

    def post_reply(self, state: ForumState, given: Fields) -> Redirect | None:
        thread, said = self._find(state, given.get("id")), clean(given.get("text"))
        if thread is None:
            return None
        if said:
            state = state._replace(replies=(*state.replies, (thread.id, said)))
        return Redirect(state, ui.address("/thread", id=thread.id))

    def post_new(self, state: ForumState, given: Fields) -> Redirect | None:
        name, title = given.get("b", ""), clean(given.get("title"))
        if name not in words()["boards"]:
            return None
        if not title:
            return Redirect(state, ui.address("/new", b=name, missing="title"))
        index = len(self.threads) + len(state.threads) + 1
        thread = Thread(index, name, title, _ME, 0, clean(given.get("text")), 0, ())
        return Redirect(
            state._replace(threads=(*state.threads, thread)), ui.address("/thread", id=index)
        )
