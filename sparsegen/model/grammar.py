"""Which continuations of a text may still become a legal kernel file for one problem. The mask of decoding.

    grammar = Grammar(problem)
    state = grammar.start()
    state.may(piece)      # whether the text so far and this piece still can
    state.push(piece)     # take it
    state.done()          # whether the text so far is a kernel file that may be compiled

The header is held strictly (header.py), the source early and loosely (body.py), the finished file by the parser and the
screen themselves. Nothing is refused that `tokenizer.written` makes of a feasible template instance.
"""

from __future__ import annotations

from sparsegen import candidate, targets
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenValueError
from sparsegen.model.body import Body
from sparsegen.model.header import Header, Rules
from sparsegen.problem import Problem

VERSION = 1  # of what is refused; a checkpoint names the one it was evaluated with


class Grammar:
    """What the texts for one problem may be; shared by the samples for it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.language = targets.get(problem.target).LANGUAGE
        self.rules = Rules(problem, self.language)
        self._readings: dict[str, Candidate | str] = {}

    def start(self) -> State:
        return State(self)

    def may(self, prefix: str, piece: str) -> bool:
        """Whether prefix + piece may still become a kernel file; `State` answers this without reading prefix again."""
        state = self.start()
        return state.may(prefix) and state.push(prefix).may(piece)

    def done(self, text: str) -> bool:
        """Whether `text` is a kernel file for this problem that may be compiled."""
        state = self.start()
        return state.may(text) and state.push(text).done()

    def reading(self, text: str) -> Candidate | str:
        """The candidate that a finished text is, or one sentence why parser, problem or screen refuse it."""
        if text not in self._readings:
            self._readings[text] = self._read(text)
        return self._readings[text]

    def _read(self, text: str) -> Candidate | str:
        try:
            found = candidate.parse(text, origin="model", language=self.language)
        except SparsegenValueError as error:
            return str(error)
        if found.op != self.problem.op or found.tune:
            return "a kernel for another operation, or one that stands for many"
        refusal = self.rules.refusal(found) or targets.get(self.problem.target).screen(found)
        return refusal or found


class State:
    """One text as far as it is written."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._at: Header | Body = Header(grammar.rules)
        self._asked: tuple[str, Header | Body | None] = ("", self._at)
        self.text = ""

    def may(self, piece: str) -> bool:
        """Whether the text with this piece may still become a kernel file."""
        self._asked = (piece, self._after(piece))
        return self._asked[1] is not None

    def push(self, piece: str) -> State:
        """Take a piece. Raises SparsegenValueError for one that `may` refuses."""
        after = self._asked[1] if self._asked[0] == piece else self._after(piece)
        if after is None:
            raise SparsegenValueError(f"no kernel goes on with {piece[:40]!r} here; expected what may() allows")
        self._at, self._asked = after, ("", after)
        self.text += piece
        return self

    @property
    def in_body(self) -> bool:
        """Whether the header is closed."""
        return isinstance(self._at, Body)

    @property
    def complete(self) -> bool:
        """Whether the text can end here: every entry is defined and nothing is open."""
        return isinstance(self._at, Body) and self._at.complete

    def refusal(self) -> str | None:
        """One sentence why the text, ended here, is no kernel file that may be compiled for this problem; or None."""
        if not self.complete:
            return "the text ends too early"
        found = self._grammar.reading(self.text)
        return found if isinstance(found, str) else None

    def done(self) -> bool:
        return self.refusal() is None

    def _after(self, piece: str) -> Header | Body | None:
        if isinstance(self._at, Body):
            return self._at.advance(piece)
        found = self._at.advance(piece)
        if found is None:
            return None
        header, rest = found
        vocabulary = None if rest is None else self._grammar.rules.close(header.lines)
        return header if rest is None or vocabulary is None else Body(vocabulary).advance(rest)
