"""One command for every stage of training; each goes on where it was cut when it is given again.

    python -m sparsegen.train corpus   --matrices DIR --corpus CORPUS
    python -m sparsegen.train pretrain --out PRETRAINED
    python -m sparsegen.train sft      --matrices DIR --corpus CORPUS --pretrained PRETRAINED --out TUNED
    python -m sparsegen.train rl       --matrices DIR --corpus CORPUS --pretrained PRETRAINED --tuned TUNED --out FINAL
    python -m sparsegen.train publish  --trained FINAL --tokenizer PRETRAINED/tokenizer.json --card CARD.json \\
                                       [--tuned TUNED --share 0.2]
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from sparsegen import files
from sparsegen.errors import SparsegenError, SparsegenValueError, sentence
from sparsegen.model import recipe

STOPPED = "stopped; the same command goes on from there"
PATHS = {
    "matrices": "folder of real matrices; without it, synthetic ones alone",
    "corpus": "folder of what was measured",
    "out": "folder of the run",
    "pretrained": "the run of stage 1",
    "tokenizer": "tokenizer.json of stage 1, that of --pretrained by default",
    "tuned": "the run of stage 2",
    "trained": "the run of stage 3, or of stage 2",
    "card": "JSON file: seed, commit, data, evaluation, grammar",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one stage. 0: done; 1: not done, or not to the end, and why; 2: a wrong command line."""
    options = _parser().parse_args(arguments)
    try:
        with files.told(signal.default_int_handler):
            finished = options.run(options)
    except (SparsegenError, OSError) as error:
        print(f"error: {sentence(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        finished = False
    if not finished:
        print(STOPPED, file=sys.stderr)
    elif options.run is not _publish:  # which prints the folder it made
        print(f"done: {vars(options).get('out') or options.corpus}")
    return 0 if finished else 1


def _corpus(options) -> bool:
    from sparsegen.record import Records, environment
    from sparsegen.train import corpus, lines
    from sparsegen.train.measure import ready

    ready("cpp")
    held_out = options.held_out or options.again
    chosen = corpus.tasks(options.matrices, options.per_family, held_out, 20260)
    if not chosen:
        raise SparsegenValueError(f"no problem to measure: no matrix in {options.matrices} of the families asked for")
    name = "held_out_again" if options.again else "held_out" if options.held_out else "measured"
    records = Records(options.corpus / f"{name}.jsonl", lines.problem_fault)
    if "environment" not in records.known:
        records.append({"key": "environment", **environment(options.seed)})
    corpus.collect(chosen, options.matrices, records, options.seed + 7 * options.again)
    return True


def _pretrain(options) -> bool:
    from sparsegen.train import pretrain

    texts = {} if options.texts is None else {"written": options.texts, "rewritten": options.texts}
    config = pretrain.PretrainConfig(
        recipe.load(options.recipe), str(options.out), tuple(options.folder), seed=options.seed, **texts
    )
    return pretrain.train(config) is not None


def _sft(options) -> bool:
    from sparsegen.train import sft
    from sparsegen.train.publish import ended

    config = sft.SftConfig(
        recipe.load(options.recipe), str(options.corpus), options.matrices and str(options.matrices),
        options.pretrained and str(options.pretrained), str(_tokenizer(options)), str(options.out), options.label,
        seed=options.seed,
    )  # fmt: skip
    if options.pretrained:
        ended(config.recipe, options.pretrained, "pretrain")
    return sft.train(config) is not None


def _rl(options) -> bool:
    from sparsegen.model.tokenizer import Tokenizer
    from sparsegen.train import lines, rl, sft
    from sparsegen.train.measure import ready
    from sparsegen.train.publish import ended
    from sparsegen.train.verdicts import Verdicts

    sizes = recipe.load(options.recipe)
    ended(sizes, options.tuned, "sft")
    tokenizer, folder = _tokenizer(options), options.matrices and str(options.matrices)
    tuned = sft.SftConfig(sizes, str(options.corpus), folder, None, str(tokenizer), "")
    config = rl.RLConfig.of(sizes, options.out, method=options.method, reward=options.reward, seed=options.seed)
    found, learned = sft.problems(tuned), Tokenizer.load(tokenizer)
    asked = rl.prompts(found)
    for language in {each.language for each in asked}:
        ready(language)
    measured = lines.measured(options.corpus / "measured.jsonl")
    verdicts = Verdicts(measured, options.matrices, options.corpus / "judged.jsonl")
    watch = sft.watch([each for each in found if each.validation], sizes, learned)
    rl.train(config, asked, verdicts.judge, sizes, learned, sft.weights(sizes, options.tuned), watch=watch)
    return True


def _tokenizer(options) -> Path:
    if not (options.tokenizer or options.pretrained):
        raise SparsegenValueError("no tokenizer; expected --pretrained with the run of stage 1, or --tokenizer")
    return options.tokenizer or options.pretrained / "tokenizer.json"


def _publish(options) -> bool:
    from sparsegen.train.publish import publish

    sizes = recipe.load(options.recipe)
    how = {"unfinished": options.unfinished, "tuned": options.tuned, "share": options.share}
    print(publish(sizes, options.trained, options.tokenizer, options.card, **how))
    return True


def _whole(least: int, most: int) -> Callable[[str], int]:
    """An option's text as a number from `least` to `most`."""

    def number(text: str) -> int:
        found = int(text)
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(f"{text}; expected a whole number from {least} to {most}")
        return found

    number.__name__ = "whole number"  # as argparse says what is none
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sparsegen.train", description=__doc__.splitlines()[0])
    stages = parser.add_subparsers(required=True, metavar="STAGE")

    def stage(name: str, run, about: str, **needed: bool) -> argparse.ArgumentParser:
        made = stages.add_parser(name, help=about, description=about)
        made.set_defaults(run=run)
        for option, required in needed.items():
            made.add_argument(f"--{option}", type=Path, required=required, metavar="PATH", help=PATHS[option])
        if name != "publish":
            made.add_argument("--seed", type=_whole(0, 2**32 - 1), default=20260)
        if name != "corpus":
            made.add_argument("--recipe", default="small", help="a name in models/, or a file")
        return made

    corpus = stage("corpus", _corpus, "measure kernels to learn from, or to evaluate on", matrices=False, corpus=True)
    corpus.add_argument("--per-family", type=_whole(0, 10_000), default=12, help="synthetic matrices of each family")
    corpus.add_argument("--held-out", action="store_true", help="the families kept for evaluation instead")
    corpus.add_argument("--again", action="store_true", help="those a second time, to score what the first chose")
    pretrain = stage("pretrain", _pretrain, "stage 1: the language of kernels", out=True)
    pretrain.add_argument(
        "--texts", type=_whole(2, 10_000_000), help="kernels to write, and as many template instances to rewrite"
    )
    pretrain.add_argument("--folder", action="append", default=[], help="of CUDA and C++ to learn from as well")
    sft = stage(
        "sft", _sft, "stage 2: from a matrix to a kernel", matrices=False, corpus=True, pretrained=False,
        tokenizer=False, out=True,
    )  # fmt: skip
    sft.add_argument("--label", default="softmax", help="which right kernel is the answer: any, fastest or softmax")
    rl = stage(
        "rl", _rl, "stage 3: rewards of measured kernels", matrices=False, corpus=True, tuned=True, pretrained=False,
        tokenizer=False, out=True,
    )  # fmt: skip
    rl.add_argument("--method", default="group", help="group or ppo")
    rl.add_argument("--reward", default="ladder", help="ladder, sparserl, tiered or correctness")
    publish = stage(
        "publish", _publish, "the checkpoint that ships", trained=True, tokenizer=True, card=True, tuned=False
    )  # fmt: skip
    publish.add_argument("--share", type=float, default=1.0, help="of the way from --tuned to --trained, 0 to 1")
    publish.add_argument("--unfinished", action="store_true", help="also of a run not at its end; the card says so")
    return parser


if __name__ == "__main__":
    sys.exit(main())
