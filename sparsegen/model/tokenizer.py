"""The text that the generator writes, and its tokens: byte-level BPE (Sennrich et al. 2016) over pairs of code words.

Learning and encoding use the `tokenizers` library; decoding, all that a shipped model needs, is this file and the JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sparsegen import candidate, paths
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError

PAD, END, CUDA, CPP = 0, 1, 2, 3
START = {"cuda": CUDA, "cpp": CPP}
SPECIAL = (" pad", " end", " cuda", " cpp")  # names with a space stand for no text: the space of a text is spelled Ġ
LEAST = 256 + len(SPECIAL)
MOST_BYTES = 1 << 24  # of a file
MOST_PIECE = 256  # characters

# What merges may join: two words with the marks around them, no further than a statement. Longer pieces make shorter
# kernels of the templates, but longer ones of what is unlike them. A digit is alone, so that numbers are spelled.
_WORD, _MARKS = r"[A-Za-z_]\w*", r"[^\s\w]"
PIECES = (
    rf"(?:\n *| )?(?:{_MARKS}*{_WORD}{_MARKS}*|{_MARKS}+)(?:(?<![;{{}}]) (?:{_WORD}{_MARKS}*|{_MARKS}+))?"
    r"| ?\d|\n *|\s"
)


def written(each: Candidate) -> str:
    """The kernel file as the generator writes it: no `about`, comments or blank lines, one space per level.

    Parses to a candidate with the same key. Raises SparsegenValueError for a template: take one of its instances.
    """
    if each.tune:
        raise SparsegenValueError(f"{each.name or 'the candidate'} stands for many kernels; write one of its instances")
    return candidate.text(replace(each, about="", source=spelled(each.source)))


def spelled(source: str) -> str:
    """A source without comments and blank lines, one space per level."""
    spliced = re.sub(r"\\[ \t]*\n", "", source)
    bare = re.sub(r"/\*.*?\*/|//[^\n]*", " ", spliced, flags=re.DOTALL)
    lines = [line for line in bare.expandtabs(4).splitlines() if line.strip()]
    margins = [len(line) - len(line.lstrip()) for line in lines]
    level = min(filter(None, margins), default=1)
    return "\n".join(" " * (at // level) + " ".join(line.split()) for at, line in zip(margins, lines, strict=True))


class Tokenizer:
    """Text to ids of tokens and back. Ids 0 to 3 are PAD, END, CUDA and CPP, which stand for no text.

    size     number of ids, those that learning left unused included
    digest   changes with anything that changes an id
    """

    def __init__(self, text: str):
        """`text`: the JSON of the `tokenizers` library. Raises SparsegenValueError when it is of another kind."""
        try:
            vocabulary = json.loads(text)["model"]["vocab"]
            names = sorted(vocabulary, key=vocabulary.__getitem__)
            ids = [vocabulary[name] for name in names]
            sound = ids == list(range(len(names))) and {*map(type, ids)} == {int} and max(map(len, names)) <= MOST_PIECE
            self._pieces = [_spelled(name) for name in names]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            sound, names = False, []
        if not sound or tuple(names[: len(SPECIAL)]) != SPECIAL:
            raise SparsegenValueError("the tokenizer is not one that Tokenizer.save wrote; learn or load another")
        self._text = text
        self._library: Any = None
        self.size = len(names)
        self.digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> Tokenizer:
        """A vocabulary of `size` ids out of texts. Raises SparsegenValueError for a size that bytes alone exceed."""
        if size < LEAST:
            raise SparsegenValueError(f"a vocabulary of {size}; every byte and the special tokens are {LEAST} already")
        try:
            from tokenizers import models, trainers
        except ImportError:
            raise _missing("learning a tokenizer") from None
        learner = _library(models.BPE())
        learner.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=size,
                special_tokens=list(SPECIAL),
                initial_alphabet=sorted(_bytes()),
                max_token_length=MOST_PIECE,
                show_progress=False,
            ),
        )
        learned = json.loads(learner.to_str())
        learned["added_tokens"] = []  # or their names would be found in texts
        vocabulary = learned["model"]["vocab"]
        vocabulary |= {f" unused {i}": i for i in range(len(vocabulary), size)}
        return cls(json.dumps(learned, ensure_ascii=False))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read what `save` wrote. Raises SparsegenValueError when it is something else, OSError when absent."""
        return cls(paths.read(Path(path), MOST_BYTES).decode("utf-8", "replace"))

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self._text.encode())

    def encode(self, text: str) -> list[int]:
        """Ids of a text, no special ones added. Raises SparsegenValueError for halves of surrogate pairs, and when the
        file cuts texts in another way than `learn` does now: a pattern of its own might take forever."""
        if not isinstance(text, str):
            raise SparsegenTypeError(f"encode takes a str, not a {type(text).__name__}")
        if self._library is None:
            try:
                from tokenizers import models
            except ImportError:
                raise _missing("encoding a text") from None
            table = json.loads(self._text)
            try:
                merges = [tuple(pair) for pair in table["model"]["merges"]]
                library = _library(models.BPE(table["model"]["vocab"], merges))
                same = table["pre_tokenizer"] == json.loads(library.to_str())["pre_tokenizer"]
            except Exception:  # the library has no class of its own for them
                same = False
            if not same:
                raise SparsegenValueError("the tokenizer cannot encode: it is not as `learn` makes it; learn another")
            self._library = library
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise SparsegenValueError(f"the text is not Unicode that UTF-8 can say: {error}") from None
        return self._library.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special ones say nothing, bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.piece, ids)).decode("utf-8", "replace")

    def piece(self, id: int) -> bytes:
        """The bytes one id stands for: none for special and unused ones."""
        if not 0 <= id < self.size:
            raise SparsegenValueError(f"token {id}; ids are 0 to {self.size - 1}")
        return self._pieces[id]


@cache
def _bytes() -> dict[str, int]:
    """The character that spells each byte in a vocabulary: itself where it prints, else one from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _spelled(name: str) -> bytes:
    return b"" if " " in name else bytes(_bytes()[character] for character in name)


def _library(model: Any) -> Any:
    """The tokenizer of the library that cuts as PIECES says."""
    import tokenizers
    from tokenizers import pre_tokenizers

    made = tokenizers.Tokenizer(model)
    pieces = pre_tokenizers.Split(tokenizers.Regex(PIECES), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
    return made


def _missing(what: str) -> SparsegenError:
    return SparsegenError(f"{what} needs the tokenizers library; pip install 'sparsegen[train]'")
