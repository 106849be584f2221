"""The source of a kernel file, token by token: whether what was written can still become a kernel of its header.

Looked at are characters, tokens, brackets, the words (declared before, or known to the screen, or being declared), the
head of every entry, and conditional lines. All else is left to the screen and the compiler, which read the whole. The
learned language is narrower than what they read: no comments, no continued lines, nothing outside of functions but
CUDA's #define lines and structs.
"""

from __future__ import annotations

import copy
import re
from functools import cache

from sparsegen.model.vocabulary import Vocabulary, declared, may_name, spell
from sparsegen.screen import tokens, words

MOST_SOURCE = 1 << 14  # characters
MOST_DEPTH = 24
_FOREIGN = re.compile(r"[^\x20-\x7e\n\t]|[\\'`@$]")
_EXTERN = re.compile(r'extern[ \t]+(?:"(?:C"?)?)?')
_PART_OF_NUMBER = re.compile(
    r"(?:[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]*)?|0[xX][0-9a-fA-F]*|0[bB][01]*)[uU]?[fFlL]{0,2}", re.ASCII
)
_DIRECTIVE = re.compile(r"#[ \t]*(\w*)(.*)", re.DOTALL)
_PRAGMAS = {"cpp": (" GCC unroll ", " GCC ivdep"), "cuda": (" unroll",)}
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, {")": "(", "]": "[", "}": "{"}
_WHOLE = frozenset("()[]{};,~")  # operators that begin no longer one
_BUILTIN = "__builtin_"
_MEMBERS = frozenset("xyzw")
_PLACES = {
    "cpp": frozenset({"inline", "INLINE", "void", "const"}),
    "cuda": frozenset({"__device__", "__forceinline__", "__noinline__", "inline", "void", "const", "struct"}),
}  # what may stand outside of functions, beside types and names


class Body:
    """What was read, and the incomplete token at its end. Never changed: `advance` copies."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.length = 0
        self.tail = ""
        self.fresh_line = True
        # brackets: the mark, whether names were declared in it since its last ; and what was declared outside
        self.stack: tuple[tuple[str, bool, frozenset[str]], ...] = ()
        self.branches: tuple[tuple, ...] = ()  # the stack at each open #if
        self.names: frozenset[str] = frozenset()  # in reach
        self.outer: frozenset[str] = frozenset()  # declared outside of functions
        self.types: frozenset[str] = frozenset()  # structs
        self.left = frozenset(vocabulary.heads)  # entries to define
        self.last = ""
        self.typed = False  # a name that comes now is declared
        self.operand = False  # the last token was a number or a variable
        self.expect: frozenset[str] = frozenset()  # one of these comes next; empty: anything
        self.entry = ""  # whose head is read; "?" before its name
        self.head: tuple[str, ...] = ()  # tokens of its parameters

    @property
    def complete(self) -> bool:
        """Whether every entry is defined and nothing is open."""
        return not (self.left or self.stack or self.branches or self.entry or self.tail.strip()) and self.last == "}"

    def advance(self, piece: str) -> Body | None:
        """The state after a piece of text, or None when no kernel goes on so."""
        if _FOREIGN.search(piece) or self.length + len(piece) > MOST_SOURCE:
            return None
        after, text, position = copy.copy(self), self.tail + piece, 0
        after.length += len(piece)
        while position < len(text):
            found = tokens.scan(text, position)
            if not found:
                return None
            kind, word, ends = found.lastgroup, found.group(), found.end() == len(text)
            if found.group("hash") is not None:
                if not after.fresh_line or "/*" in word or "//" in word:
                    return None
                if ends:
                    if not after._may_be_directive(word):
                        return None
                    break
                if not after._directive(word):
                    return None
            elif kind in ("space", "newline"):
                after.fresh_line = after.fresh_line or kind == "newline"
            elif ends and not (kind == "op" and word in _WHOLE) and kind != "extern":
                if not after._may_become(str(kind), word):
                    return None
                break
            elif _EXTERN.fullmatch(text, position) and kind != "extern":
                if after.stack:
                    return None
                break
            elif not after._token(str(kind), word):
                return None
            else:
                after.fresh_line = False
            position = found.end()
        after.tail = text[position:]
        return after

    # ---- whole tokens; each returns whether it may stand here and notes it

    def _token(self, kind: str, text: str) -> bool:
        if self.expect and text not in self.expect and kind != "extern":
            return False
        expected, self.expect = self.expect, frozenset()
        if kind == "extern":
            right = not self.stack and not self.entry and not expected and bool(self.left)
            self.entry = "?"
            self.expect = frozenset({"void" if self.vocabulary.language == "cpp" else "__global__"})
        elif kind == "name":
            right = self._word(text)
        elif kind == "number":
            right = bool(self.stack) and not self.operand and tokens.is_number(text)
            self.typed, self.operand = False, True
        else:
            right = kind == "op" and self._operator(text)
            self.operand = False
        if right and self.entry and self.entry != "?" and (text, len(self.stack)) != ("(", 1):
            right = self._in_head(text)
        self.last = text
        return right

    def _word(self, word: str) -> bool:
        vocabulary, cuda = self.vocabulary, self.vocabulary.language == "cuda"
        if self.entry == "?" and not self.stack:
            return self._before_head(word)
        if self.last in (".", "->"):
            self.operand = True
            return word in _MEMBERS or bool(self.types)
        if self.operand:
            return False
        known = word in vocabulary.words or word in self.types
        typed, self.typed = self.typed, False
        if word in vocabulary.types or word in self.types or (word == "void" and not self.stack):
            self.typed = True
        elif word in words.QUALIFIERS:
            self.typed = typed
        elif typed and word not in vocabulary.brings and (word not in vocabulary.words or word in vocabulary.taken):
            return self._declare(word)
        elif self.last == "struct":
            self.types |= {word}
            return self._declare(word)
        elif word in vocabulary.brings:
            self.names |= vocabulary.brings[word]
        elif word in self.names:
            self.operand = word not in self.outer
        elif not known and not _is_builtin(word):
            return False
        if not self.stack and not self.typed and word not in _PLACES[vocabulary.language]:
            return word in words.QUALIFIERS
        if word in ("for", "while", "switch") or (word == "if" and not cuda):
            self.expect = frozenset({"(", "constexpr"} if word == "if" else {"("})
        elif word == "extern":
            self.expect = frozenset({"__shared__"})
            return cuda
        return word != "__global__"

    def _declare(self, word: str) -> bool:
        if word not in self.names and (word in self.vocabulary.taken or not may_name(word) or len(word) > 40):
            return False
        if self.stack:
            mark, _, names = self.stack[-1]
            self.stack = (*self.stack[:-1], (mark, True, names))
            self.operand = True
        else:
            self.outer |= {word}
            self.expect = frozenset("({")
        self.names |= {word}
        return True

    def _operator(self, text: str) -> bool:
        cuda, typed, self.typed = self.vocabulary.language == "cuda", self.typed, False
        if text in ("...", "::") or (text in (".", "->") and not cuda):
            return False
        if text in _OPEN:
            if not self.stack and not (text == "(" or (text == "{" and (self.last == ")" or self.last in self.types))):
                return False
            mark = "for" if text == "(" and self.last == "for" else text
            self.stack = (*self.stack, (mark, False, self.names))
            return len(self.stack) <= MOST_DEPTH
        if text in _CLOSE:
            if not self.stack or self.stack[-1][0].replace("for", "(") != _CLOSE[text]:
                return False
            *rest, (_, _, names) = self.stack
            self.stack = tuple(rest)
            if text == "}":
                self.names = names if rest else self.outer
            if text == ")" and not rest and self.entry == "?":
                self.expect = frozenset({"void", *self.left})
            elif text == ")" and not rest and not self.entry:
                self.expect = frozenset("{")
            return True
        if not self.stack:
            return (cuda and text == "*" and typed) or (cuda and text == ";" and self.last == "}" and bool(self.types))
        mark, declares, names = self.stack[-1]
        if text == ";":
            self.stack = (*self.stack[:-1], (mark, False, names))
            return mark in ("{", "for")
        if text == ",":
            self.typed = declares
        elif text in ("*", "&"):
            self.typed = typed
        return True

    # ---- the head of an entry: its parameters are those that the format and the operation give

    def _before_head(self, word: str) -> bool:
        cuda = self.vocabulary.language == "cuda"
        if word in self.left:
            self.entry, self.head, self.left = word, (), self.left - {word}
            self.expect = frozenset("(")
            self.outer |= {word}
        elif word == "__launch_bounds__":
            self.expect = frozenset("(")
        elif word == "__global__":
            self.expect = frozenset({"void", "__launch_bounds__"})
        else:
            self.expect = self.left | {"__launch_bounds__"} if cuda else self.left
        return True

    def _in_head(self, text: str) -> bool:
        wanted = self.vocabulary.heads[self.entry]
        if text == self.entry:
            return True
        if not self.stack:
            whole = self.head == wanted
            self.entry = ""
            self.expect = frozenset("{")
            self.names |= frozenset(declared(list(wanted)))
            return whole
        if text not in ("__restrict__", "__restrict"):
            self.head += tuple(spell([text], self.vocabulary.spelled))
        return self.head == wanted[: len(self.head)]

    # ---- conditional lines

    def _directive(self, line: str) -> bool:
        found = _DIRECTIVE.fullmatch(line)
        assert found is not None
        word, rest = found.groups()
        self.operand = self.typed = False
        if not self._lawful(line) or self.expect:
            return False
        if word == "define":
            name = re.match(r"\s*(\w+)(?:\(([\w\s,]*)\))?", rest)
            if not name or name[1] in self.vocabulary.words or not may_name(name[1]):
                return False
            inner = frozenset(re.findall(r"\w+", name[2] or ""))
            self.outer |= {name[1]}
            self.names |= {name[1]}
            return all(self._knows(each, inner) for each in re.findall(r"[A-Za-z_]\w*", rest[name.end() :]))
        if word in ("if", "ifdef", "ifndef"):
            self.branches = (*self.branches, self.stack)
        elif word in ("elif", "else", "endif"):
            if not self.branches:
                return False
            if word == "endif":
                self.branches = self.branches[:-1]
            else:
                self.stack = self.branches[-1]
        if word in ("if", "elif"):
            return all(self._knows(each, {"defined"}) for each in re.findall(r"[A-Za-z_]\w*", rest))
        return True

    def _lawful(self, line: str) -> bool:
        if self.vocabulary.language == "cpp":
            try:
                tokens.tokenize(line)
            except tokens.Refused:
                return False
            return True
        from sparsegen.screen import cuda

        return cuda.check(line) is None and not line.startswith(("#undef", "# undef"))

    def _knows(self, word: str, more: frozenset[str] | set[str] = frozenset()) -> bool:
        return word in self.vocabulary.words or word in self.names or word in more

    # ---- what may still become a token

    def _may_become(self, kind: str, text: str) -> bool:
        if kind == "name":
            return self._may_become_word(text)
        if kind == "number":
            return bool(self.stack) and not self.operand and _PART_OF_NUMBER.fullmatch(text) is not None
        if kind != "op" or (self.expect and not any(each.startswith(text) for each in self.expect)):
            return False
        return bool(self.stack) or (self.vocabulary.language == "cuda" and text in ("*", "-"))

    def _may_become_word(self, text: str) -> bool:
        if self.expect:
            return any(each.startswith(text) for each in self.expect)
        if self.last in (".", "->"):
            return text in _MEMBERS or bool(self.types)
        if self.operand:
            return False
        if (self.typed or self.last == "struct") and text[0] != "_" and "__" not in text and len(text) <= 40:
            return True
        known = text in self.vocabulary.prefixes or any(each.startswith(text) for each in self.names | self.types)
        return known or text.startswith(_BUILTIN) or _BUILTIN.startswith(text) or "extern".startswith(text)

    def _may_be_directive(self, line: str) -> bool:
        found = _DIRECTIVE.fullmatch(line)
        assert found is not None
        word, rest = found.groups()
        cuda = self.vocabulary.language == "cuda"
        known = ["if", "elif", "else", "endif", "pragma", *(("ifdef", "ifndef", "define") if cuda else ())]
        if not rest:
            return any(each.startswith(word) for each in known)
        if word == "pragma":
            pragmas = _PRAGMAS[self.vocabulary.language]
            return len(rest) <= 60 and any(each.startswith(rest) or rest.startswith(each) for each in pragmas)
        return word in known and (word not in ("else", "endif") or not rest.strip()) and len(rest) <= 400


@cache
def _is_builtin(word: str) -> bool:
    return word.startswith(_BUILTIN) and any(pattern.fullmatch(word) for pattern, _ in words.BUILTINS)
