"""A kernel as a stand-alone project, for applications in C++: source, packed arrays, CMake, a main that checks itself.

What is written is the very translation unit that was compiled and verified here, and the arrays it ran on; a call goes
through a small host side that needs nothing of this package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sparsegen import composite, formats, ops, prelude, projects, targets, values
from sparsegen.artifact import Artifact
from sparsegen.candidate import Candidate, evaluate
from sparsegen.errors import SparsegenValueError
from sparsegen.kernel import Kernel
from sparsegen.problem import Problem
from sparsegen.targets import cpu, cuda

PIECES = 64  # of the work of a launch, shared by whatever threads there are
FIXED_INTEGERS = ("int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t")
PLAIN = {
    "int8_t": "signed char", "int16_t": "short", "int32_t": "int", "int64_t": "long long", "uint8_t": "unsigned char",
    "uint16_t": "unsigned short", "uint32_t": "unsigned int", "uint64_t": "unsigned long long",
}  # fmt: skip
NOT_IN_A_PROGRAM = ("-x", "c++", "-shared", "-nostdlib", "-Wl,--no-undefined", "-w")


def write(thing: Kernel | Artifact, folder: Path) -> list[str]:
    """Write the project into `folder`, which must be new or empty; the names of its files.

    Raises SparsegenValueError where a library serves, which has no source, and where the folder is in use.
    """
    if thing.candidate is None:
        serves = getattr(thing, "baseline", "a library")
        raise SparsegenValueError(
            f"this kernel is a call of {serves}, which has no source of ours; link {serves} instead"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SparsegenValueError(f"{folder} is not empty; expected the name of a new folder")
    made = _Project(thing)
    for name, content in made.files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return sorted(made.files())


class _Project:
    def __init__(self, thing: Kernel | Artifact):
        assert thing.candidate is not None
        self.candidate: Candidate = thing.candidate
        self.problem: Problem = thing.problem
        self.cuda = self.candidate.language == "cuda"
        arch = re.search(r"sm_(\d+)", getattr(thing, "arch", "") or self.problem.device)
        self.arch = arch[1] if arch else "80"
        self.packs = composite.pack(self.candidate, self.problem)
        data = thing._A.data.astype(self.problem.dtype, copy=False)
        self.arrays: dict[str, np.ndarray] = {}
        for turn, packed in enumerate(self.packs):
            held = {**packed.arrays, "data": values.encode(self.candidate.encoding, data, packed, self.problem.dtype)}
            self.arrays |= {f"part{turn}_{name}": np.ascontiguousarray(array) for name, array in held.items()}
        pattern = self.problem.pattern
        self.plain = {
            "csr_indptr": pattern.indptr.astype(self.problem.offset_dtype),
            "csr_indices": pattern.indices.astype(self.problem.index_dtype), "csr_data": np.ascontiguousarray(data),
        }  # fmt: skip

    def files(self) -> dict[str, bytes]:
        """Name -> content."""
        end = "cu" if self.cuda else "cpp"
        unit = targets.get("cuda" if self.cuda else "cpu").unit(self.candidate, self.problem, self.packs)
        if self.cuda:  # its own fixed integers must not meet those of the toolkit's headers
            unit = "".join(f"#define {name} sparsegen_{name}\n" for name in FIXED_INTEGERS) + unit
        includes = "#include <cuda_runtime.h>" if self.cuda else ""
        host = projects.CUDA if self.cuda else projects.CPU
        texts = {
            "product.h": projects.HEADER,
            f"product.{end}": projects.READ + host + projects.PLAIN,
            f"main.{end}": projects.MAIN,
            "CMakeLists.txt": projects.CUDA_CMAKE if self.cuda else projects.CPU_CMAKE,
        }
        filled = self._filled() | {"INCLUDES": includes}
        found = {name: _fill(text, filled).encode() for name, text in texts.items()}
        found[f"kernel.{end}"] = unit.encode()
        for name, array in {**self.arrays, **self.plain}.items():
            found[f"data/{name}.bin"] = array.tobytes()
        return found

    def _filled(self) -> dict[str, str]:
        problem, pattern = self.problem, self.problem.pattern
        # nothing turns B there: it is asked for by rows
        row_x, row_y = self.candidate.turns or problem.order_b == "C", problem.order_c == "C"
        device = {name: f"Device {name}" for name in self.arrays} if self.cuda else {}
        read = [
            f'{name}(folder + "/{name}.bin", {array.nbytes})' for name, array in {**self.arrays, **self.plain}.items()
        ]
        scratch = prelude.scratch(self.candidate, problem, self.packs)
        members = [f"{device.get(name, f'Bytes {name}')};" for name in self.arrays]
        members += [f"Device scratch_{name}{{{count * dtype.itemsize}}};" for name, (dtype, count) in scratch.items()]
        doors = sorted({launch.entry for part in self.candidate.parts for launch in part.launches})
        return {
            "WHAT": f"The kernel {self.candidate.label}, written by sparsegen.",
            "ABOUT": " ".join(self.candidate.about.split()), "MACHINE": problem.device or "another one",
            "M": str(pattern.m), "N": str(pattern.n), "NNZ": str(pattern.nnz), "K": str(problem.k),
            "REAL": prelude.C_TYPE[problem.dtype.name], "PLACE": "on the device" if self.cuda else "in memory",
            "ORDER_X": "row after row" if row_x else "column after column",
            "ORDER_Y": "row after row" if row_y else "column after column",
            "AT_X": "row * width + column" if row_x else "column * columns + row",
            "AT_Y": "row * width + column" if row_y else "column * rows + row",
            "OFFSET_TYPE": prelude.C_TYPE[problem.offset_dtype.name],
            "INDEX_TYPE": prelude.C_TYPE[problem.index_dtype.name],
            "ARRAYS": "\n    ".join(members), "CSR": "\n    ".join(f"Bytes {name};" for name in self.plain),
            "READ": ",\n          ".join(read), "CHECKS": str(prelude.checks_finite(self.candidate)).lower(),
            "DOORS": "\n".join(f"Door door_{entry};" for entry in doors),
            "KERNELS": "" if not self.cuda else self._declared(),
            "ZERO": ("" if not self.candidate.zero else projects.CUDA_ZERO if self.cuda else projects.CPU_ZERO),
            "LAUNCHES": self._cuda_launches() if self.cuda else self._cpu_launches(),
            "CALL": projects.CUDA_CALL if self.cuda else projects.CPU_CALL,
            "TIME": projects.CUDA_TIME if self.cuda else projects.CPU_TIME,
            "SUPPORT": "" if self.cuda else _supported(), "FLAGS": ";".join(_flags()),
            "ARCH": self.arch,
        }  # fmt: skip

    def _launched(self):
        """(part number, part, launch, whether y has its beta already) in order."""
        for turn, part in enumerate(self.candidate.parts):
            for launch in part.launches:
                yield turn, part, launch, bool(self.candidate.zero) or turn > 0

    def _cpu_launches(self) -> str:
        lines = []
        for number, (turn, part, launch, later) in enumerate(self._launched()):
            sizes = prelude.sizes(self.problem, self.packs[turn], self.candidate.turns)
            words = [
                str(sizes[name]) if name in sizes else f"reinterpret_cast<int64_t>(arrays->part{turn}_{name}.data)"
                for name in prelude.worded(self.candidate, part)
            ]
            beta = "1" if later else "beta"
            cuts = formats.get(part.format).cuts(self.packs[turn], PIECES)
            cuts = np.unique(cuts)  # pieces without work are none
            cuts = cuts if len(cuts) > 1 else np.append(cuts, cuts)
            lines += [
                f"    const int64_t words{number}[] = {{{', '.join(words)}}};",
                f"    static const int64_t cuts{number}[] = {{{', '.join(map(str, cuts))}}};",
                f"    launch(door_{launch.entry}, words{number}, cuts{number}, {len(cuts) - 1}, {beta});",
            ]
        return "\n".join(lines)

    # ---- CUDA

    def _declared(self) -> str:
        """The entries of kernel.cu, in the plain types of C++."""
        macros = prelude.macros(self.candidate, self.problem, self.packs)
        lines = []
        for _, part, launch, _ in self._launched():
            kinds = [_plain(kind, macros) for _, kind in prelude.arguments(self.candidate, part)]
            lines.append(f'extern "C" __global__ void {launch.entry}({", ".join(kinds)});')
        if self.candidate.zero:
            real = macros["VALUE"]
            lines.append(f'extern "C" __global__ void sparsegen_scale({real}*, long long, {real});')
        return "\n".join(dict.fromkeys(lines))

    def _cuda_launches(self) -> str:
        operand_x, operand_y = _operands(self.candidate)
        macros = prelude.macros(self.candidate, self.problem, self.packs)
        lines = []
        for number, (turn, part, launch, later) in enumerate(self._launched()):
            names = prelude.names(self.candidate, part, self.problem, self.packs[turn])
            sizes = prelude.sizes(self.problem, self.packs[turn])
            grid, block, shared = (evaluate(text, names) for text in (launch.grid, launch.block, launch.shared_bytes))
            if not grid:
                continue
            given = {
                operand_x: "x",
                operand_y: "y",
                "alpha": "alpha",
                "beta": "1" if later else "beta",
                "status": "status",
            }
            given |= {name: f"a.scratch_{name}.data" for name in self.candidate.scratch}
            lines.append("    {")
            arguments = prelude.arguments(self.candidate, part)
            for name, kind in arguments:
                value = given.get(name) or (str(sizes[name]) if name in sizes else f"a.part{turn}_{name}.data")
                plain = _plain(kind, macros)
                lines.append(f"        {plain} {name}_ = ({plain}){value};")
            entry = f"reinterpret_cast<const void*>(&{launch.entry})"
            if shared > cuda.STATIC_SHARED:
                attribute = "cudaFuncAttributeMaxDynamicSharedMemorySize"
                lines.append(f"        ask(cudaFuncSetAttribute({entry}, {attribute}, {shared}));")
            lines += [
                f"        void* given{number}[] = {{{', '.join(f'(void*)&{name}_' for name, _ in arguments)}}};",
                f"        ask(cudaLaunchKernel({entry}, dim3({grid}), dim3({block}), given{number}, {shared}, 0));",
                "    }",
            ]
        return "\n".join(lines)


def _operands(candidate: Candidate) -> Sequence[str]:
    """The names of x and of y."""
    return list(ops.get(candidate.op).OPERANDS)


def _plain(kind: str, macros: Mapping[str, str]) -> str:
    """A type without macros, and without names that a header may have given another meaning."""
    for _ in range(4):
        kind = re.sub(r"\w+", lambda found: macros.get(found[0], found[0]), kind)
    return re.sub(r"\w+", lambda found: PLAIN.get(found[0], found[0]), kind)


def _fill(text: str, filled: Mapping[str, str]) -> str:
    return re.sub(r"@([A-Z_]+)@", lambda found: filled[found[1]], text)


def _flags() -> list[str]:
    """Of the compiler that the kernel was verified with, without what makes a library of it."""
    found = cpu.compiler()
    flags = [*cpu.FLAGS, *(cpu.GCC_FLAGS if found and found.is_gcc else ()), *cpu.machine().flags]
    return [flag for flag in flags if flag not in NOT_IN_A_PROGRAM]


def _supported() -> str:
    """Lines that refuse a processor without what the kernel was compiled for."""
    wanted = [flag.removeprefix("-m") for flag in cpu.machine().flags if re.fullmatch(r"-m(avx|sse|fma|bmi)\w*", flag)]
    lines = ["#if defined(__x86_64__)"]
    lines += [
        f'        if (!__builtin_cpu_supports("{name}")) throw std::runtime_error("this processor has no {name}");'
        for name in wanted
    ]
    return "\n".join([*lines, "#endif"]) if wanted else ""
