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

import re
from dataclasses import replace

from sparsegen import cpp_names, prelude
from sparsegen.candidate import Candidate, Part
from sparsegen.cpp_names import Definition, Function, Names, Type
from sparsegen.cpp_tokens import Refused, Token, refusal

MOST_SOURCE = 1 << 16
MOST_TOKENS = 200_000  # read in one file, macros expanded
MOST_DEPTH = 40  # of statements and expressions
MOST_ARRAY_BYTES = 1 << 16  # of local arrays in a file
VECTOR_BYTES, SCALAR_BYTES = 64, 8  # of one array element, at most
MOST_BAKED = 64  # what an integer that a format bakes may be, for the size of arrays

ARITHMETIC = {"int", "long", "unsigned", "signed", "short", "char", "float", "double", "bool"}
SIGNED = {"int", "long", "int32_t", "int64_t", "INDEX", "OFFSET"}
QUALIFIERS = {"__restrict__", "__restrict", "const"}
LEADING = {"const", "constexpr", "auto", "alignas"}  # of a declaration, beside types
KEYWORDS = ARITHMETIC | QUALIFIERS | LEADING | {
    "if", "else", "for", "while", "do", "break", "continue", "return", "void", "inline", "sizeof", "static_cast", "true",
    "false", "extern",
}  # fmt: skip
FOREIGN = frozenset(  # of C++, and in no kernel
    """alignof and and_eq asm bitand bitor case catch class co_await co_return co_yield compl concept const_cast
    consteval constinit decltype default delete dynamic_cast enum explicit export friend goto mutable namespace new
    noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires
    static static_assert struct switch template this thread_local throw try typedef typeid typename typeof union using
    virtual volatile wchar_t xor xor_eq main""".split()  # noqa: SIM905
)
BINARY = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
COMPARISONS = {"==", "!=", "<", ">", "<=", ">="}

# Builtins, and which argument is a pointer; none is None. A builtin that no pattern matches is refused.
_IA32 = "__builtin_ia32_"
_VALUES = (
    "add|sub|mul|div|min|max|sqrt|and|or|xor|hadd|hsub|vfm|vfnm|blend|u?cmp|cvt|perm|vperm|shuf|unpck|align|extract|insert|"
    "vextract|vinsert|vec_ext|vec_set|compress|expand|movmsk|movddup|movs[hl]dup|pabs|padd|psub|pmul|pmin|pmax|pand|por|"
    "pxor|psll|psr|pro[lr]|pshuf|pblend|pbroadcast|broadcast|pmov|pcmp(eq|gt)|ptest|pternlog|punpck|palignr|"
    "k(and|or|xor|xnor|not|add|unpck|shift|mov)|rndscale|round|scalef|getexp|getmant|range|rcp|rsqrt|p[ds](256|512)?_|si"
)
_NOT_VALUES = "mem|load|store|gather|scatter|pf|nt|msr|dqu"
BUILTINS: tuple[tuple[re.Pattern[str], int | None], ...] = (
    (re.compile(r"__builtin_(fma|fabs|fmin|fmax|sqrt|copysign|floor|ceil|trunc|rint)f?"), None),
    (re.compile(r"__builtin_(expect|shuffle|shufflevector|convertvector)"), None),
    (re.compile(r"__builtin_((popcount|clz|ctz|ffs)(l|ll)?|bswap(16|32|64))"), None),
    (re.compile(r"__builtin_(prefetch|assume_aligned|nontemporal_load)"), 0),
    (re.compile(r"__builtin_nontemporal_store"), 1),
    (re.compile(_IA32 + r"gather(3?(siv|div)\d+[sd][fi]|[dq]_(pd|ps|d|q))(256)?"), 1),
    (re.compile(_IA32 + r"scatter(siv|div)\d+[sd][fi]"), 0),
    (re.compile(_IA32 + r"mask(load|store)(pd|ps|d|q)(256)?"), 0),
    (re.compile(_IA32 + r"(load|store)([ua]p[sd]|dqu[sdhq]i)(128|256|512)_mask"), 0),
    (re.compile(_IA32 + r"(expandload|compressstore)[sd][fi](128|256|512)_maskz?"), 0),
    (re.compile(_IA32 + r"movnt(p[sd]|dq)(256|512)?"), 0),
    (re.compile(_IA32 + r"sfence"), None),
    (re.compile(_IA32 + rf"(?!\w*({_NOT_VALUES}))({_VALUES})\w*"), None),
)


def check(candidate: Candidate) -> str | None:
    """None when the candidate may be compiled and run; else one sentence why not. A template is all its instances."""
    if candidate.language != "cpp":
        return f"the language is {candidate.language}; this reads cpp"
    if len(candidate.source) > MOST_SOURCE:
        return f"the source has {len(candidate.source)} characters; at most {MOST_SOURCE} are read"
    try:
        names = cpp_names.of(candidate)
        for tokens in cpp_names.variants(candidate.source, names):
            _Reader(candidate, names, tokens).file()
    except Refused as refused:
        return str(refused)
    return None


class _Reader:
    """Recursive descent over the tokens of one variant."""

    def __init__(self, candidate: Candidate, names: Names, tokens: list[Token]) -> None:
        self.candidate, self.names = candidate, names
        self.tokens, self.position = [*tokens, Token("end", "the end", tokens[-1].line if tokens else 1)], 0
        self.helpers: dict[str, Function] = {}
        self.entries: set[str] = set()
        self.scopes: list[dict[str, Type]] = []
        self.declaring = ""  # a variable whose initialiser is read: there its name already hides an outer one
        self.read = self.depth = self.array_bytes = 0

    # Tokens

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    def after(self, count: int) -> str:
        return self.tokens[min(self.position + count, len(self.tokens) - 1)].text

    def take(self, text: str | None = None) -> Token:
        token = self.next
        if text is not None and token.text != text:
            raise self.refuse(token, f"cannot stand here; {text!r} is expected")
        if token.text in FOREIGN:
            raise self.refuse(token, "is not in the kernel language")
        self.read += 1
        if self.read > MOST_TOKENS:
            raise self.refuse(token, f"is beyond the {MOST_TOKENS} tokens that are read, macros expanded")
        if token.kind != "end":
            self.position += 1
        return token

    def skip(self, text: str) -> bool:
        if self.next.text != text or self.next.kind == "extern":
            return False
        self.take()
        return True

    def refuse(self, token: Token, why: str) -> Refused:
        return refusal(token.line, token.text, "is not in the kernel language" if token.text in FOREIGN else why)

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise self.refuse(self.next, f"is nested more than {MOST_DEPTH} deep")

    # Functions

    def file(self) -> None:
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
            raise self.refuse(self.next, f"is reached without extern \"C\" void {missing[0]}(...) of the header")

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

    # Types

    def starts_type(self, count: int = 0) -> bool:
        text = self.after(count)
        return text in LEADING or text in ARITHMETIC or text in self.names.types

    def base_type(self) -> Type:
        const = False
        while self.next.text in ("const", "constexpr"):
            self.take()
            const = True
        if self.next.text in ARITHMETIC:
            words = [self.take().text]
            while self.next.text in ARITHMETIC:
                words.append(self.take().text)
            name = " ".join(words)
        elif self.next.text == "auto" or self.next.text in self.names.types:
            name = self.take().text
        else:
            raise self.refuse(self.next, "is not a type or is not declared")
        if self.skip("const"):
            const = True
        return Type(name, const=const, vector=self.names.types.get(name, False))

    def pointer(self, base: Type) -> Type:
        if not self.skip("*"):
            return base
        while self.next.text in QUALIFIERS:
            self.take()
        if self.next.text in ("*", "&"):
            raise self.refuse(self.next, "cannot stand here: there are no pointers or references to pointers")
        return replace(base, levels=1)

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

    def statement(self) -> None:
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
        elif text == "alignas" or (self.starts_type() and self.after(1) not in ("(", "{")):
            self.declaration()
        elif self.is_statement(text):
            self.expand(statement=True)
            self.take(";")
        else:
            self.expression(comma=False)
            self.take(";")
        self.depth -= 1

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
                raise self.refuse(name, "is not an array of numbers or vectors with a size known when it is compiled")
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
        if not self.skip("="):
            if (type_.levels and not array) or type_.name == "auto":
                raise self.refuse(name, "needs an initialiser")
            return type_
        value = self.expression()
        if type_.name == "auto":
            return replace(value, levels=min(value.levels, 1), element=False, bounds=None)
        self.same_level(name, type_.levels, value)
        constant = type_.const and not type_.levels and type_.name in SIGNED
        return replace(type_, bounds=value.bounds if constant else None)

    def braces(self) -> int:
        """The number of items of a { } list."""
        self.deeper()
        self.take("{")
        count = 0
        while not self.skip("}"):
            if self.next.text == "{":
                self.braces()
            else:
                self.value()
            count += 1
            if not self.skip(","):
                self.take("}")
                break
        self.depth -= 1
        return count

    # Expressions

    def same_level(self, token: Token, levels: int, value: Type) -> None:
        if levels != value.levels:
            raise self.refuse(token, "would make a pointer of a number, or a number of a pointer")

    def value(self) -> Type:
        token = self.next
        value = self.expression()
        self.same_level(token, 0, value)
        return value

    def expression(self, comma: bool = False) -> Type:
        value = self.assignment()
        while comma and self.skip(","):
            value = self.assignment()
        return value

    def assignment(self) -> Type:
        self.deeper()
        left = self.conditional()
        if self.next.text in ASSIGNMENTS:
            operator = self.take()
            right = self.assignment()
            moved = left.levels and operator.text in ("+=", "-=")
            if left.levels and operator.text not in ("=", "+=", "-="):
                raise self.refuse(operator, "does not apply to pointers")
            self.same_level(operator, 0 if moved else left.levels, right)
            left = replace(left, bounds=None)
        self.depth -= 1
        return left

    def conditional(self) -> Type:
        value = self.binary(1)
        if self.next.text != "?":
            return value
        token = self.take()
        self.same_level(token, 0, value)
        left = self.expression()
        self.take(":")
        right = self.assignment()
        self.same_level(token, left.levels, right)
        chosen = right if right.vector else left
        return Type(chosen.name, left.levels, left.const or right.const, left.vector or right.vector)

    def binary(self, minimum: int) -> Type:
        left = self.unary()
        while BINARY.get(self.next.text, 0) >= minimum:
            operator = self.take()
            left = self.combined(operator, left, self.binary(BINARY[operator.text] + 1))
        return left

    def combined(self, operator: Token, left: Type, right: Type) -> Type:
        text = operator.text
        if left.levels or right.levels:
            if text in COMPARISONS:
                self.same_level(operator, left.levels, right)
                return Type("bool")
            if (text == "+" and left.levels + right.levels == 1) or (text == "-" and left.levels == 1 > right.levels):
                return replace(left if left.levels else right, element=False, bounds=None)
            raise self.refuse(operator, "does not apply to pointers")
        vector = left.vector or right.vector
        name = "bool" if text in COMPARISONS and not vector else (right if right.vector else left).name
        return Type(name, vector=vector, bounds=_bounds(text, left.bounds, right.bounds))

    def unary(self) -> Type:
        self.deeper()
        token = self.next
        if token.text in ("+", "-", "!", "~"):
            self.take()
            value = self.unary()
            self.same_level(token, 0, value)
            minus = (-value.bounds[1], -value.bounds[0]) if token.text == "-" and value.bounds else None
            result = Type(value.name, vector=value.vector, bounds=value.bounds if token.text == "+" else minus)
        elif token.text in ("++", "--"):
            self.take()
            result = replace(self.unary(), bounds=None)
        elif token.text == "*":
            self.take()
            result = self.element(token, self.unary())
        elif token.text == "&":
            self.take()
            value = self.unary()
            if not value.element or value.levels:
                raise self.refuse(token, "takes the address of an element only, as in &x[i]")
            result = replace(value, levels=1, element=False)
        elif token.text == "sizeof":
            self.take()
            if self.next.text == "(" and self.starts_type(1) and self.after(2) not in ("(", "{"):
                self.take()
                self.pointer(self.base_type())
                self.take(")")
            else:
                self.unary()
            result = Type("unsigned long")
        elif token.text == "(" and self.starts_type(1) and self.after(2) not in ("(", "{"):
            self.take()
            type_ = self.pointer(self.base_type())
            self.take(")")
            result = self.cast(token, type_, self.unary())
        else:
            result = self.postfix()
        self.depth -= 1
        return result

    def cast(self, token: Token, type_: Type, value: Type) -> Type:
        self.same_level(token, type_.levels, value)
        if type_.name == "auto":
            raise self.refuse(token, "casts to auto")
        if type_.levels and not (type_.vector or type_.name == value.name):
            raise self.refuse(token, "casts a pointer to other than a pointer to a vector type")
        if type_.levels and value.const and not type_.const:
            raise self.refuse(token, "casts const away")
        return replace(type_, const=type_.const and bool(type_.levels))

    def element(self, token: Token, value: Type) -> Type:
        if not value.levels:
            raise self.refuse(token, "needs a pointer")
        return replace(value, levels=value.levels - 1, element=value.levels == 1, bounds=None)

    def postfix(self) -> Type:
        value = self.primary()
        while True:
            token = self.next
            if self.skip("["):
                if value.levels:
                    value = self.element(token, value)
                elif value.vector:
                    value = Type(f"element of {value.name}")
                else:
                    raise self.refuse(token, "needs an array, a pointer or a vector")
                self.value()
                self.take("]")
            elif self.skip("++") or self.skip("--"):
                value = replace(value, element=False, bounds=None)
            else:
                return value

    def primary(self) -> Type:
        token = self.next
        name = token.text
        if token.kind == "number":
            self.take()
            plain = re.fullmatch(r"0|[1-9][0-9]{0,9}", name)
            return Type("int", bounds=(int(name), int(name))) if plain else Type("number")
        if self.skip("("):
            value = self.expression()
            self.take(")")
            return value
        if name == "static_cast":
            self.take()
            self.take("<")
            type_ = self.pointer(self.base_type())
            self.take(">")
            self.take("(")
            value = self.expression()
            self.take(")")
            return self.cast(token, type_, value)
        if name in self.names.types or name in ARITHMETIC:
            type_ = self.base_type()
            if self.next.text == "{":
                self.braces()
            else:
                self.take("(")
                if not self.skip(")"):
                    self.value()
                    self.take(")")
            return replace(type_, const=False)
        if name in self.names.macros:
            return self.expand()
        if name == "status" and not token.ours:
            raise self.refuse(token, "is the prelude's; it may only be passed to a helper that takes EPILOGUE")
        self.take()
        if name in ("true", "false"):
            return Type("bool")
        if name in self.names.integers:
            values = self.names.integers[name]
            return Type("int", bounds=(min(values), max(values)))
        if name in self.names.baked:
            return Type("int", bounds=(0, MOST_BAKED))
        if name == self.declaring:
            raise self.refuse(token, "is used in its own declaration")
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        function = self.helpers.get(name) or self.names.functions.get(name)
        if function:
            return self.call(token, function)
        for pattern, pointer in BUILTINS:
            if pattern.fullmatch(name):
                return self.builtin(token, pointer)
        if token.kind == "name":
            raise self.refuse(token, "is not declared")
        raise self.refuse(token, "cannot stand here; an expression is expected")

    def call(self, token: Token, function: Function) -> Type:
        self.take("(")
        count = 0
        while not self.skip(")"):
            if count == len(function.params):
                raise self.refuse(token, f"takes {len(function.params)} arguments")
            if count:
                self.take(",")
            param, pointer = function.params[count]
            if param == "status" and self.next.text == "status":
                self.take()
            elif param == "status":
                raise self.refuse(self.next, "is not status")
            else:
                self.same_level(self.next, int(pointer), self.expression())
            count += 1
        if count != len(function.params):
            raise self.refuse(token, f"takes {len(function.params)} arguments")
        return function.result

    def builtin(self, token: Token, pointer: int | None) -> Type:
        self.take("(")
        result = Type("number", vector=True)
        count = 0
        while not self.skip(")"):
            if count:
                self.take(",")
            if token.text == "__builtin_convertvector" and count == 1:
                result = self.base_type()
            else:
                place = self.next
                value = self.expression()
                self.same_level(place, int(count == pointer), value)
                if token.text == "__builtin_assume_aligned" and count == 0:
                    result = replace(value, element=False)
            count += 1
        if pointer is not None and count <= pointer:
            raise self.refuse(token, "needs its pointer")
        return result

    # Macros

    def expand(self, statement: bool = False) -> Type:
        """Read every definition of a macro with its arguments in place; the type of the last."""
        self.deeper()
        token = self.take()
        definitions = self.names.macros[token.text]
        arguments = self.arguments() if definitions[0].params is not None else []
        result = Type("void")
        for definition in definitions:
            params = definition.params or ()
            if len(params) != len(arguments) or (definition.params is None) != (definitions[0].params is None):
                raise self.refuse(token, f"takes {len(params)} arguments")
            places = dict(zip(params, arguments, strict=True))
            tokens: list[Token] = []
            for each in definition.body:
                tokens += places.get(each.text, [replace(each, line=token.line)])
            if statement:
                tokens.append(Token("op", ";", token.line, True))
            kept = self.tokens, self.position
            self.tokens, self.position = [*tokens, Token("end", f"the end of {token.text}", token.line)], 0
            if statement:
                self.statement()
            else:
                result = self.expression()
            if self.next.kind != "end":
                raise self.refuse(self.next, f"cannot stand in an argument of {token.text}")
            self.tokens, self.position = kept
        self.depth -= 1
        return result

    def arguments(self) -> list[list[Token]]:
        """The tokens of each argument of a macro, split as the preprocessor does."""
        self.take("(")
        arguments: list[list[Token]] = [[]]
        depth = 0
        while depth or self.next.text != ")":
            token = self.take()
            if token.kind == "end":
                raise self.refuse(token, "is reached inside the arguments of a macro")
            depth += (token.text == "(") - (token.text == ")")
            if token.text == "," and depth == 0:
                arguments.append([])
            else:
                arguments[-1].append(token)
        self.take(")")
        return arguments


def _bounds(operator: str, left: tuple[int, int] | None, right: tuple[int, int] | None) -> tuple[int, int] | None:
    """Bounds of an integer constant; None for what is not simple arithmetic within 31 bits."""
    if left is None or right is None or (operator == "/" and right[0] <= 0):
        return None
    compute = {
        "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: int(a / b),
    }.get(operator)  # fmt: skip
    if compute is None:
        return None
    corners = [compute(a, b) for a in left for b in right]
    return (min(corners), max(corners)) if max(map(abs, corners)) < 2**31 else None
