"""The expressions of a C++ kernel, read with the little of their types that keeps pointers honest.

Recursive descent over tokens. Every expression is a number, a vector or a pointer (Type.levels); a number never becomes
a pointer nor a pointer a number. Macros are expanded where they stand, in every way the prelude may define them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from sparsegen.screen.names import Function, Names, Type, bounds_of
from sparsegen.screen.tokens import Refused, Token, refusal
from sparsegen.screen.words import ARITHMETIC, ASSIGNMENTS, BINARY, BUILTINS, COMPARISONS, FOREIGN, LEADING, QUALIFIERS

MOST_TOKENS = 100_000  # read of one file, macros expanded, in all variants together
MOST_DEPTH = 120  # of statements and expressions
MOST_BAKED = 64  # what an integer that a format bakes may be, for the size of arrays


class Expressions:
    """Reads expressions from tokens; names are looked up in scopes, then helpers, then what the prelude defines."""

    def __init__(self, names: Names, tokens: list[Token]) -> None:
        self.names = names
        self.tokens, self.position = [*tokens, Token("end", "the end", tokens[-1].line if tokens else 1)], 0
        self.helpers: dict[str, Function] = {}
        self.scopes: list[dict[str, Type]] = []
        self.declaring = ""  # a variable whose initialiser is read: there its name already hides an outer one
        self.read = self.depth = 0

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
        self.deeper()
        left = self.unary()
        while BINARY.get(self.next.text, 0) >= minimum:
            operator = self.take()
            left = self.combined(operator, left, self.binary(BINARY[operator.text] + 1))
        self.depth -= 1
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
        return Type(name, vector=vector, bounds=bounds_of(text, left.bounds, right.bounds))

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
            return self.expand(self.expression)
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

    # Macros

    def expand(self, read: Callable[[], Type], ending: str = "") -> Type:
        """Read every definition of a macro, its arguments in place and `ending` after it; the type of the last."""
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
            tokens += [Token("op", text, token.line, True) for text in ending]
            kept = self.tokens, self.position
            self.tokens, self.position = [*tokens, Token("end", f"the end of {token.text}", token.line)], 0
            result = read()
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
