"""The text that the generator writes, and its tokens: byte-level BPE (Sennrich et al. 2016) over pairs of code words.

Learning uses the `tokenizers` library; what a shipped model does, encoding and decoding, needs this file and the JSON.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from sparsegen import candidate, paths
from sparsegen.candidate import Candidate
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError

PAD, END, CUDA, CPP = 0, 1, 2, 3
START = {"cuda": CUDA, "cpp": CPP}
SPECIAL = (" pad", " end", " cuda", " cpp")  # names with a space stand for no text: the space of a text is spelled Ġ
LEAST = 256 + len(SPECIAL)
MOST_BYTES = 1 << 24  # of a file
MOST_PIECE = 256  # characters
MOST_KEPT = 1 << 16  # pieces whose ids are remembered

# What merges may join: two words with the marks around them, no further than a statement. Longer pieces make shorter
# kernels of the templates, but longer ones of what is unlike them. A digit is alone, so that numbers are spelled.
_WORD, _MARKS = r"[A-Za-z_]\w*", r"[^\s\w]"
PIECES = (
    rf"(?:\n *| )?(?:{_MARKS}*{_WORD}{_MARKS}*|{_MARKS}+)(?:(?<![;{{}}]) (?:{_WORD}{_MARKS}*|{_MARKS}+))?"
    r"| ?\d|\n *|\s"
)
_CUT = re.compile(f"({PIECES})")


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
        self._merges: dict[tuple[int, int], tuple[int, int]] | None = None  # of two ids: its rank, and the id of both
        self._ids: dict[str, list[int]] = {}  # of pieces met before
        self.size = len(names)
        self.digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> Tokenizer:
        """A vocabulary of `size` ids out of texts. Raises SparsegenValueError for a size that bytes alone exceed."""
        if size < LEAST:
            raise SparsegenValueError(f"a vocabulary of {size}; every byte and the special tokens are {LEAST} already")
        try:
            import tokenizers
            from tokenizers import models, pre_tokenizers, trainers
        except ImportError:
            needs = "learning a tokenizer needs the tokenizers library"
            raise SparsegenError(f"{needs}; pip install 'sparsegen[train]'") from None
        learner = tokenizers.Tokenizer(models.BPE())
        pieces = pre_tokenizers.Split(tokenizers.Regex(PIECES), "isolated")
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        learner.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
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
        if self._merges is None:
            self._merges = self._learned()
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise SparsegenValueError(f"the text is not Unicode that UTF-8 can say: {error}") from None
        return [id for piece in filter(None, _CUT.split(text)) for id in self._joined(piece)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special ones say nothing, bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.piece, ids)).decode("utf-8", "replace")

    def piece(self, id: int) -> bytes:
        """The bytes one id stands for: none for special and unused ones."""
        if not 0 <= id < self.size:
            raise SparsegenValueError(f"token {id}; ids are 0 to {self.size - 1}")
        return self._pieces[id]

    def _learned(self) -> dict[tuple[int, int], tuple[int, int]]:
        table = json.loads(self._text)
        try:
            vocabulary = table["model"]["vocab"]
            sound = table["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] == PIECES
            self._alphabet = [vocabulary[character] for character in sorted(_bytes(), key=_bytes().__getitem__)]
            merges = {
                (vocabulary[one], vocabulary[other]): (rank, vocabulary[one + other])
                for rank, (one, other) in enumerate(table["model"]["merges"])
            }
        except (ValueError, TypeError, KeyError, IndexError):
            sound = False
        if not sound:
            raise SparsegenValueError("the tokenizer cannot encode: it is not as `learn` makes it; learn another")
        self._first = dict.fromkeys(range(self.size), len(merges))  # of an id: the first rank of a pair with it
        for pair, (rank, _) in reversed(merges.items()):
            self._first.update(dict.fromkeys(pair, rank))
        return merges

    def _joined(self, piece: str) -> list[int]:
        """The ids of a piece: its bytes, of which the pair that was learned first is joined until none is left."""
        if piece in self._ids:
            return self._ids[piece]
        merges = self._merges or {}
        ids = [self._alphabet[byte] for byte in piece.encode()]
        while known := [(merges[pair], pair) for pair in itertools.pairwise(ids) if pair in merges]:
            (rank, both), pair = min(known)
            everywhere, joined = self._first[both] > rank, ids[:1]  # else what comes of one place may be joined first
            for at, id in enumerate(ids[1:], 2):
                if (joined[-1], id) == pair:
                    joined[-1] = both
                    if not everywhere:
                        joined += ids[at:]
                        break
                else:
                    joined.append(id)
            ids = joined
        if len(self._ids) < MOST_KEPT and len(piece) <= MOST_PIECE:
            self._ids[piece] = ids
        return ids


@cache
def _bytes() -> dict[str, int]:
    """The character that spells each byte in a vocabulary: itself where it prints, else one from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _spelled(name: str) -> bytes:
    return b"" if " " in name else bytes(_bytes()[character] for character in name)
