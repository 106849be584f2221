"""Whether the source of a C++ kernel may be compiled and run natively: it is read as a small typed language.

A file holds entries and helper functions; a function holds declarations, if, for, while, do, break, continue and
return; an expression holds numbers, declared names, what the prelude and the signature define, and listed builtins.
Macros are those of the prelude and the signature, and are expanded, so that their arguments are read as what they
become. Conditional lines are evaluated, for every value that a tune list or the machine may give.

Pointers come from parameters and local arrays, moved by integers, and from nowhere else: no null, no cast from or to
an integer, none stored in memory, none to a pointer. A pointer is cast to a pointer to a vector type only. That keeps a
kernel from naming anything; it may still compute a wrong index, or never end: the worker and the guard bands find that.
"""

from __future__ import annotations

from dataclasses import replace

from sparsegen import prelude
from sparsegen.candidate import Candidate, Part
from sparsegen.screen import names as known
from sparsegen.screen.expressions import MOST_BAKED, MOST_TOKENS, Expressions
from sparsegen.screen.names import Function, Names, Type
from sparsegen.screen.tokens import Refused, Token
from sparsegen.screen.words import FOREIGN, KEYWORDS, SIGNED

MOST_SOURCE = 1 << 16
MOST_ARRAY_BYTES = 1 << 16  # of local arrays in a file
VECTOR_BYTES, SCALAR_BYTES = 64, 8  # of one array element, at most


def check(candidate: Candidate) -> str | None:
    """None when the candidate may be compiled and run; else one sentence why not. A template is all its instances."""
    if candidate.language != "cpp":
        return f"the language is {candidate.language}; this reads cpp"
    if len(candidate.source) > MOST_SOURCE:
        return f"the source has {len(candidate.source)} characters; at most {MOST_SOURCE} are read"
    try:
        names = known.of(candidate)
        read = 0
        for tokens in known.variants(candidate.source, names):
            file = _File(candidate, names, tokens)
            file.read = read
            file.read_all()
            read = file.read
    except Refused as refused:
        return str(refused)
    return None


class _File(Expressions):
    """Reads the functions and statements of one variant."""

    def __init__(self, candidate: Candidate, names: Names, tokens: list[Token]) -> None:
        super().__init__(names, tokens)
        self.candidate = candidate
        self.entries: set[str] = set()
        self.array_bytes = 0

    # Functions

    def read_all(self) -> None:
        """The whole source: helpers, and each entry once."""
        wanted: dict[str, list[Part]] = {}
        for part, launch in prelude.entries(self.candidate):
            wanted.setdefault(launch.entry, []).append(part)
        while self.next.kind != "end":
            if self.next.kind == "extern":
                self.entry(wanted)
            else:
                self.helper()
        if missing := sorted(set(wanted) - self.entries):
            raise self.refuse(self.next, f'is reached without extern "C" void {missing[0]}(...) of the header')

    def entry(self, wanted: dict[str, list[Part]]) -> None:
        self.take()
        self.take("void")
        name = self.take()
        if name.text not in wanted or name.text in self.entries:
            raise self.refuse(name, f"is not an entry still to define; the header has {', '.join(sorted(wanted))}")
        self.check_name(name)
        self.entries.add(name.text)
        signature = [f"{kind} {name}" for name, kind, _ in self.params()]
        for part in wanted[name.text]:
            listed = [*prelude.arguments(self.candidate, part), ("begin", "int64_t"), ("end", "int64_t")]
            if signature != (expected := [f"{kind} {name}" for name, kind in listed]):
                raise self.refuse(name, f"takes ({', '.join(signature)}); expected ({', '.join(expected)})")
        self.body()

    def helper(self) -> None:
        if self.next.text in ("inline", "INLINE"):
            self.take()
        if self.next.text == "void":
            result = Type(self.take().text)
        else:
            result = self.base_type()
        if self.next.text in ("*", "&"):
            raise self.refuse(self.next, "cannot be returned: a function returns a value")
        name = self.take()
        if self.next.text != "(":
            raise self.refuse(name, "cannot stand outside a function: a file holds entries and helper functions")
        self.check_name(name)
        params = self.params()
        if self.next.text != "{":
            raise self.refuse(self.next, f"cannot stand here; the body of {name.text!r} is expected")
        self.body()
        self.helpers[name.text] = Function(result, tuple((each, type_.levels > 0) for each, _, type_ in params))

    def params(self) -> list[tuple[str, str, Type]]:
        """Name, C type and type of each parameter, declared in a new scope."""
        self.take("(")
        self.scopes = [{}]
        params: list[tuple[str, str, Type]] = []
        while True:
            while self.next.text in self.names.macros:
                self.splice(self.take())
            if not params and self.skip(")"):
                return params
            if self.next.text in ("constexpr", "auto", "alignas"):
                raise self.refuse(self.next, "cannot stand in a parameter")
            type_ = self.pointer(self.base_type())
            reference = type_.levels == 0 and self.skip("&")
            name = self.take()
            kind = ("const " if type_.const and (type_.levels or reference) else "") + type_.name
            params.append((name.text, kind + "*" * type_.levels + "&" * reference, type_))
            self.declare(name, type_)
            if self.skip(")"):
                return params
            self.take(",")

    def splice(self, token: Token) -> None:
        """Put the body of a parameter-list macro before the tokens to come."""
        definition = self.names.macros[token.text][0]
        if definition.params is not None or len(self.tokens) > MOST_TOKENS:
            raise self.refuse(token, "is not a list of parameters")
        self.tokens[self.position : self.position] = [replace(each, line=token.line) for each in definition.body]

    def body(self) -> None:
        self.depth = 0
        self.block()
        self.scopes = []

    def check_name(self, token: Token) -> None:
        name = token.text
        if token.kind != "name" or name in FOREIGN or name in KEYWORDS:
            raise self.refuse(token, "cannot stand here; a name is expected")
        taken = name in self.names or name in self.helpers or name in self.entries
        if token.ours and not taken:
            return
        if taken or (self.scopes and name in self.scopes[-1]) or (len(self.scopes) == 2 and name in self.scopes[0]):
            raise self.refuse(token, "is already the name of something else here")
        if "__" in name or name[0] == "_" or name[-1] == "_" or name.startswith("door") or len(name) > 40:
            raise self.refuse(token, "is not free: no leading, double or last underscore, no door, 40 characters")
        if name == "status":
            raise self.refuse(token, "is declared by EPILOGUE alone")

    def declare(self, token: Token, type_: Type) -> None:
        self.check_name(token)
        self.scopes[-1][token.text] = type_

    # Statements

    def block(self) -> None:
        self.take("{")
        self.scopes.append({})
        while not self.skip("}"):
            self.statement()
        self.scopes.pop()

    def controlled(self) -> None:
        self.scopes.append({})
        self.statement()
        self.scopes.pop()

    def condition(self) -> None:
        self.take("(")
        self.value()
        self.take(")")

    def statement(self) -> Type:
        self.deeper()
        text = self.next.text
        if text == "{":
            self.block()
        elif self.skip(";"):
            pass
        elif self.skip("if"):
            self.skip("constexpr")
            self.condition()
            self.controlled()
            while self.skip("else"):
                if not self.skip("if"):
                    self.controlled()
                    break
                self.condition()
                self.controlled()
        elif self.skip("while"):
            self.condition()
            self.controlled()
        elif self.skip("do"):
            self.controlled()
            self.take("while")
            self.condition()
            self.take(";")
        elif self.skip("for"):
            self.for_loop()
        elif text in ("break", "continue"):
            self.take()
            self.take(";")
        elif self.skip("return"):
            if not self.skip(";"):
                self.value()
                self.take(";")
        elif self.starts_type():  # T(x); too: C++ takes it for a declaration, which is refused there
            self.declaration()
        elif self.is_statement(text):
            self.expand(self.statement, ending=";")
            self.take(";")
        else:
            self.expression()
            self.take(";")
        self.depth -= 1
        return Type("void")

    def is_statement(self, name: str) -> bool:
        """Whether a macro becomes a statement."""
        firsts = [definition.body[0].text for definition in self.names.macros.get(name, ()) if definition.body]
        return any(first == "do" or (first != name and self.is_statement(first)) for first in firsts)

    def for_loop(self) -> None:
        self.scopes.append({})
        self.take("(")
        if not self.skip(";"):
            if self.starts_type():
                self.declaration()
            else:
                self.expression(comma=True)
                self.take(";")
        if not self.skip(";"):
            self.value()
            self.take(";")
        if not self.skip(")"):
            self.expression(comma=True)
            self.take(")")
        self.controlled()
        self.scopes.pop()

    def declaration(self) -> None:
        if self.skip("alignas"):
            self.take("(")
            if not self.next.text.isdigit() or int(self.take().text) > 64:
                raise self.refuse(self.next, "is not an alignment of at most 64")
            self.take(")")
        base = self.base_type()
        while True:
            type_ = self.pointer(base)
            if self.next.text == "&":
                raise self.refuse(self.next, "cannot stand here: only parameters are references")
            name = self.take()
            self.check_name(name)
            self.declaring = name.text
            type_ = self.initialised(name, self.dimensions(name, type_))
            self.declaring = ""
            self.declare(name, type_)
            if self.skip(";"):
                return
            self.take(",")

    def dimensions(self, name: Token, type_: Type) -> Type:
        """The type of an array, its bytes counted; type_ itself when no [ follows."""
        elements, levels = 1, 0
        while self.skip("["):
            size = self.expression() if self.next.text != "]" else Type("int", bounds=(0, MOST_BAKED))
            if size.bounds is None or size.bounds[0] < 0 or type_.levels or type_.name == "auto":
                raise self.refuse(name, "is not an array of numbers or vectors of constant size")
            elements *= size.bounds[1]
            levels += 1
            self.take("]")
        if levels:
            self.array_bytes += elements * (VECTOR_BYTES if type_.vector else SCALAR_BYTES)
            if levels > 3 or self.array_bytes > MOST_ARRAY_BYTES:
                raise self.refuse(name, f"brings the local arrays over {MOST_ARRAY_BYTES} bytes or 3 dimensions")
        return replace(type_, levels=type_.levels + levels, element=bool(levels))

    def initialised(self, name: Token, type_: Type) -> Type:
        """The type of a variable after its initialiser. element marks an array."""
        array, type_ = type_.element, replace(type_, element=False)
        if self.next.text == "{" or (self.next.text == "=" and self.after(1) == "{"):
            self.skip("=")
            if (type_.levels and not array) or type_.name == "auto":
                raise self.refuse(name, "needs an initialiser that is no list")
            if self.braces() > MOST_BAKED and array:
                raise self.refuse(name, f"has a list of more than {MOST_BAKED} values")
            return type_
        if self.next.text == "=" and array:
            self.take()
            if self.next.text not in self.names.baked:
                raise self.refuse(self.next, "cannot initialise an array")
            self.take()
            return type_
        if not self.skip("="):  # what an earlier call left on the stack would be a memory between calls
            raise self.refuse(name, "needs an initialiser")
        value = self.expression()
        if type_.name == "auto":
            if value.levels > 1:
                raise self.refuse(name, "would be a pointer to an array")
            return replace(value, element=False, bounds=None)
        self.same_level(name, type_.levels, value)
        constant = type_.const and not type_.levels and type_.name in SIGNED
        return replace(type_, bounds=value.bounds if constant else None)
