"""Compiling, searching, saving and calling on a GPU that is none (fake_gpu.py), worker and all."""

from __future__ import annotations

import gc
import json

import fake_gpu
import numpy as np
import pytest
import scipy.sparse as sp
from fake_gpu import on_device
from support import asked_in_turns

import sparsegen
from sparsegen import (
    candidate,
    checks,
    device_arrays,
    engine,
    evaluate,
    events,
    export,
    fence,
    gallery,
    gpu,
    nvrtc,
    paths,
    ptx,
    store,
)
from sparsegen.__main__ import main
from sparsegen.artifact import Artifact
from sparsegen.errors import SparsegenError, SparsegenTypeError, SparsegenValueError
from sparsegen.kernel import Kernel
from sparsegen.verdict import Level

pytestmark = pytest.mark.skipif(ptx.available() is not None, reason=f"{ptx.available()}")
A = gallery.powerlaw(211, 193, 1201, seed=7013)
ASKED = dict(target="cuda", budget=4.0, max_candidates=2, seed=7013, cache=False, model=None)


@pytest.fixture
def install(monkeypatch):
    monkeypatch.setattr(events, "BURST_NS", 1)

    def go(**options) -> fake_gpu.Driver:
        return fake_gpu.install(options, monkeypatch.setattr)

    yield go
    gc.collect()
    monkeypatch.undo()
    fake_gpu.remove()


def kernel_of(**options) -> Kernel:
    """A kernel that no library has beaten."""
    made = sparsegen.compile(A, **{**ASKED, **options})
    assert isinstance(made, Kernel) and made.candidate is not None, made.report()
    return made


def test_compile_on_a_gpu(install):
    install(library=False)
    kernel = kernel_of()
    report = kernel.report()
    assert report["device"] == "Fake H200 sm_90 driver 13.2" and kernel.candidate.language == "cuda"
    assert report["measured_us"] > 0 and report["measured_cold_us"] > 0 and "estimated_us" not in report
    assert report["gpu"]["before"]["sm_mhz"] == 1980
    assert "not found" in report["baselines"]["cusparse"]["refused"]
    x = np.random.default_rng(20273).standard_normal(193)
    np.testing.assert_allclose(kernel @ x, A @ x)
    np.testing.assert_allclose(kernel @ x.astype("f4"), A @ x.astype("f4"))
    np.testing.assert_allclose(kernel(x, alpha=2, beta=0.5, out=np.ones(211)), 2 * (A @ x) + 0.5)
    np.testing.assert_allclose(kernel @ np.stack([x, x], 1), A @ np.stack([x, x], 1))
    with pytest.raises(SparsegenValueError, match="192"):
        kernel @ x[:192]


def test_the_library_is_raced(install):
    install()
    kernel = sparsegen.compile(A, **ASKED)
    entry = kernel.report()["baselines"]["cusparse"]
    assert entry["measured_us"] > 0 and entry["cold_us"] > 0 and entry["chosen"].split()[0] in ("csr", "coo", "sell")
    assert "measured_us" not in kernel.report()["baselines"]["scipy"] or kernel.baseline != "scipy"
    x = np.random.default_rng(20274).standard_normal(193)
    np.testing.assert_allclose(kernel @ x, A @ x)
    there = on_device(x)
    np.testing.assert_allclose((kernel @ there).get(), A @ x)
    np.testing.assert_allclose(kernel(there, alpha=3).get(), 3 * (A @ x))


def test_arrays_on_the_gpu(install):
    driver = install(library=False)
    kernel = kernel_of()
    x, stream = np.random.default_rng(20275).standard_normal(193), int(driver.cuStreamCreate(0)[1])
    there = on_device(x, stream)
    driver.launches.clear()
    y = kernel @ there
    assert isinstance(y, device_arrays.DeviceArray) and {each[-1] for each in driver.launches} == {stream}
    np.testing.assert_allclose(y.get(), A @ x)
    np.testing.assert_allclose(np.asarray(y), A @ x)
    out = on_device(np.ones((211, 1)))
    assert kernel(on_device(x.reshape(-1, 1)), out=out, alpha=2.0, beta=-1.0) is out
    np.testing.assert_allclose(out.get(), 2 * (A @ x.reshape(-1, 1)) - 1)
    wide = np.random.default_rng(20276).standard_normal((193, 3))
    np.testing.assert_allclose((kernel @ on_device(wide)).get(), A @ wide)  # another shape than it was made for
    for wrong, error, told in (
        (on_device(x.astype("f4")), SparsegenTypeError, "float32 on the GPU"),
        (on_device(x[:192]), SparsegenValueError, "192"),
    ):
        with pytest.raises(error, match=told):
            kernel @ wrong
    for out, told in ((np.ones(211), "ndarray"), (on_device(np.ones(210)), "210"), (there, "193")):
        with pytest.raises(SparsegenValueError, match=told):
            kernel(there, out=out)
    with pytest.raises(SparsegenValueError, match="without out"):
        kernel(there, beta=1)
    square = sparsegen.compile(sp.csr_array(A[:193]), **ASKED)
    with pytest.raises(SparsegenValueError, match="share memory"):
        square(there, out=there)
    other = there.__cuda_array_interface__
    there.device = type("Elsewhere", (), {"ordinal": 5})()
    with pytest.raises(SparsegenValueError, match="GPU 5"):
        kernel @ there
    assert other["data"][0] == there.buffer.address


def test_spmm_of_both_layouts(install):
    install(library=False)
    kernel = kernel_of(op="spmm", k=5)
    B = np.random.default_rng(20277).standard_normal((193, 5))
    for order in ("C", "F"):
        there = on_device(np.asarray(B, order=order))
        C = kernel @ there
        assert C.order == order
        np.testing.assert_allclose(C.get(), A @ B)
    np.testing.assert_allclose((kernel @ on_device(B[:, :3].copy())).get(), A @ B[:, :3])


def test_another_width_is_checked_in_a_worker(install):
    """Of three columns this kernel would write outside C, and end the context of the process."""
    driver = install(library=False)
    text = (paths.data("cuda_templates") / "spmm" / "csr_row.cu").read_text()
    changed = text.replace("STORE_C(row, column, sum)", "STORE(C, row * 5 + column, sum)")
    chosen = next(candidate.instances(candidate.parse(changed, name="csr_row", language="cuda")))
    problem = engine.problem_of(A, op="spmm", k=5, facts=None, target="cuda")
    kernel = Kernel(A, problem, chosen, "scipy", {"notes": []})
    for k in (5, 3, 7):
        X = np.random.default_rng(20281).standard_normal((193, k))
        np.testing.assert_allclose((kernel @ on_device(X)).get(), A @ X)
        assert (kernel._binding.plan(k, "row", "row") is not None) == (k == 5)
    assert driver.ended == 0


def test_a_kernel_that_leaves_what_was_computed_before_is_found(install):
    """Its sums are right in every check; only one that adds atomically may give others each time."""
    install(library=False)
    text = (paths.data("cuda_templates") / "spmv" / "csr_scalar.cu").read_text()
    known = """
    const int64_t first = int64_t(blockIdx.x) * BLOCK;
    ACC known = 0;
    for (OFFSET p = indptr[first]; p < indptr[first + 1]; ++p) known += VALUE_AT(p) * ACC(x[indices[p]]);
    const bool done = beta == ACC(0) && y[first] == VALUE(alpha * SCALED(known));
    __syncthreads();
    if (row >= m || done) return;"""
    keeps = text.replace("if (row >= m) return;", known)
    adds = keeps.replace("STORE(y, row, sum);", "STORE(y, row, sum);\n    if (nnz < 0) atomicAdd(&y[row], sum);")
    problem = engine.problem_of(A, facts=None, target="cuda")
    timed = checks.TimedReferences(problem, A)
    with fence.session(problem, A) as session:
        references, why = checks.References(problem), {}
        for name, source in {"honest": text, "keeps": keeps, "adds": adds}.items():
            each = next(candidate.instances(candidate.parse(source, name=name, language="cuda")))
            verdict = evaluate.evaluate(each, problem, session, references, name)
            assert verdict.level == Level.CORRECT and each.atomic == (name == "adds"), verdict
            session.ask("arm", 30.0, name=name, bound=name, threads=1)
            answer = session.ask("rounds", 60.0, arms=[name], count=6, most_seconds=20.0, seed=20281)
            assert bool(answer["changed"]) == (name != "honest")
            why[name] = evaluate.disbelieved(session, timed, each, name, answer["changed"], 30.0)
    assert why["honest"] is None
    assert "equal inputs" in why["keeps"] and "not the product" in why["adds"]


def test_a_graph_of_a_kernel(install):
    install(library=False)
    kernel = kernel_of()
    x, y = on_device(np.ones(193)), on_device(np.zeros(211))
    graph = kernel.graph(x, y)
    x.set(np.arange(193.0))
    graph()
    np.testing.assert_allclose(y.get(), A @ np.arange(193.0))
    with pytest.raises(SparsegenTypeError, match="on the GPU"):
        kernel.graph(np.ones(193), y)


def test_sums_that_are_not_finite(install):
    install(library=False)
    B = A.copy()
    B.data[:] = 2.0
    kernel = sparsegen.compile(B, **ASKED)
    x = np.ones(193)
    x[7] = np.inf
    with np.errstate(invalid="ignore"):
        expected = B @ x
    np.testing.assert_array_equal((kernel @ on_device(x)).get(), expected)
    out = on_device(np.ones(211))
    np.testing.assert_array_equal(kernel(on_device(x), out=out, beta=2).get(), expected + 2)


def test_new_values(install):
    install(library=False)
    kernel = kernel_of(facts=None)
    data = np.random.default_rng(20278).standard_normal(A.nnz)
    kernel.update_values(data)
    x = np.ones(193)
    expected = sp.csr_array((data, A.indices, A.indptr), A.shape) @ x
    np.testing.assert_allclose((kernel @ on_device(x)).get(), expected, rtol=1e-10, atol=1e-12)


def test_a_kernel_that_ends_the_context_costs_itself_alone(install):
    install(library=False, poison="merge")
    outcome = {each["label"].split()[0]: each for each in _tried(max_candidates=None, budget=20.0)}
    assert outcome["csr_merge"]["fault"] == "illegal address" and outcome["csr_merge"]["level"] == "COMPILED"
    assert any(each["level"] in ("CORRECT", "TIMED") for each in outcome.values())


def _tried(**options) -> list[dict]:
    kernel = sparsegen.compile(A, **{**ASKED, **options})
    x = np.ones(193)
    np.testing.assert_allclose(kernel @ x, A @ x)
    return kernel.report()["candidates"]


def test_a_gpu_without_memory_leaves_scipy(install):
    install(library=False, memory=8 << 20)  # what is flushed before a cold call fits, and hardly more
    big = gallery.stencil2d(401, 397)
    kernel = sparsegen.compile(big, **{**ASKED, "budget": 3.0})
    assert kernel.candidate is None and kernel.baseline == "scipy"
    said = str(kernel.report())
    assert "memory" in said
    np.testing.assert_allclose(kernel @ np.ones(big.shape[1]), big @ np.ones(big.shape[1]))


def test_a_machine_without_a_usable_gpu(install):
    install(refuse="cuDevicePrimaryCtxRetain", code=46)
    with pytest.raises(SparsegenValueError, match="another process has it"):
        sparsegen.compile(A, **ASKED)
    kernel = sparsegen.compile(A, budget=0.01, target="auto")
    assert kernel.problem.target == "cpu"


def test_the_device_that_is_asked_for(install):
    install(library=False, devices=2)
    kernel = kernel_of(device=1)
    assert kernel.problem.ordinal == 1
    np.testing.assert_allclose(kernel @ np.ones(193), A @ np.ones(193))
    with pytest.raises(SparsegenValueError, match="device = 2; there are 2"):
        sparsegen.compile(A, **{**ASKED, "device": 2})


def test_saved_and_loaded(install, tmp_path):
    install(library=False)
    kernel = kernel_of()
    kernel.save(tmp_path / "k.sgk")
    again = sparsegen.load(tmp_path / "k.sgk")
    x = np.random.default_rng(20279).standard_normal(193)
    assert again.candidate is not None
    np.testing.assert_allclose((again @ on_device(x)).get(), A @ x)


def artifact(arch="sm_90", **options) -> Artifact:
    made = sparsegen.compile(A, target="cuda", arch=arch, budget=20.0, max_candidates=2, seed=7013, **options)
    assert isinstance(made, Artifact) and made.certificate["level"] == "CORRECT"
    return made


def test_an_artifact_arrives_at_its_gpu(install, tmp_path, monkeypatch):
    install(library=False)
    artifact().save(tmp_path / "a.sgk")
    monkeypatch.setattr(sparsegen.targets.get("cuda"), "compile", lambda *_: pytest.fail("it was compiled again"))
    kernel = sparsegen.load(tmp_path / "a.sgk")
    assert isinstance(kernel, Kernel) and kernel.candidate is not None
    report = kernel.report()
    assert report["measured_us"] > 0 and report["certificate"]["level"] == "CORRECT"
    assert any("checked again and timed" in note for note in report["notes"])
    x = np.random.default_rng(20280).standard_normal(193)
    np.testing.assert_allclose(kernel @ x, A @ x)
    np.testing.assert_allclose((kernel @ on_device(x)).get(), A @ x)


@pytest.mark.parametrize("options, told", [
    ({"capability": (8, 0)}, "for sm_90, and Fake H200 is sm_80"),
    ({"refuse": "cuInit", "code": 100}, "no CUDA device"),
])  # fmt: skip
def test_an_artifact_elsewhere_stays_one(install, tmp_path, options, told):
    install(library=False)
    artifact().save(tmp_path / "a.sgk")
    install(library=False, **options)
    made = sparsegen.load(tmp_path / "a.sgk")
    assert isinstance(made, Artifact) and any(told in note for note in made.report()["notes"])
    with pytest.raises(SparsegenError, match="with that GPU"):
        made @ np.ones(193)


def test_an_artifact_that_fails_there_is_refused(install, tmp_path):
    install(library=False)
    made = artifact()
    wrong = made.image.replace(b"add.f64", b"sub.f64").replace(b"fma.rn.f64", b"mul.rn.f64 %fd1, %fd1, %fd1; //")
    made.image = wrong if wrong != made.image else made.image[:20]
    store.save(made, tmp_path / "a.sgk")
    made = sparsegen.load(tmp_path / "a.sgk")
    assert isinstance(made, Artifact) and made.verified.startswith("refused on Fake H200")
    with pytest.raises(SparsegenError, match="compile its matrix again"):
        made @ np.ones(193)
    assert "refused" in made.certificate


def test_bursts_that_begin_before_they_are_queued_are_tried_again(install):
    driver = install(late=True)
    clock = events.Clock(gpu.get(0))
    calls = []
    clock.burst(lambda: calls.append(1), 3)
    assert len(calls) == events.TRIES * (3 + events.WARM_UP)
    driver.late = False
    calls.clear()
    assert clock.burst(lambda: calls.append(1), 3) >= 0 and len(calls) == 3 + events.WARM_UP
    calls.clear()
    clock.cold(lambda: calls.append(1))
    assert len(calls) == events.SINGLE


def test_events_ahead_of_the_hosts_clock_give_no_time(install):
    driver = install()
    clock = events.Clock(gpu.get(0))
    driver.cuEventElapsedTime = lambda begin, end: (fake_gpu.Result.CUDA_SUCCESS, 1e6)
    with pytest.raises(SparsegenError, match="clock"):
        clock.burst(lambda: None, 3)


def test_a_worker_that_cannot_start_says_why(install, monkeypatch):
    install(library=False)
    worse = fence.START.replace("'library'", "'refuse': 'cuMemAlloc', 'code': 2, 'library'")
    monkeypatch.setattr(fence, "START", worse)
    fence._template.stop()
    kernel = sparsegen.compile(A, **ASKED)
    assert kernel.candidate is None and any("OUT_OF_MEMORY" in n or "memory" in n for n in kernel.report()["notes"])


def test_a_v100(install):
    """The GPU of 2017: with the extra cuda12 its machine code is made and run, without it one is told so."""
    install(library=False, capability=(7, 0), name="Fake V100")
    if "sm_70" not in nvrtc.archs():
        with pytest.raises(SparsegenValueError, match=r"does not compile for Fake V100 \(sm_70\).*cuda12"):
            sparsegen.compile(A, **ASKED)
        return
    kernel = kernel_of(max_candidates=None, budget=20.0)
    assert {each["level"] for each in kernel.report()["candidates"]} <= {"CORRECT", "TIMED"}
    np.testing.assert_allclose(kernel @ on_device(np.ones(193)), A @ np.ones(193))
    assert artifact("sm_70").arch == "sm_70"


def test_a_driver_older_than_its_bindings(install):
    driver = install(library=False)
    driver.CUDA_VERSION = 14000
    with pytest.raises(SparsegenValueError, match=r"takes CUDA 13\.2, and cuda-bindings is for CUDA 14.*cuda12"):
        sparsegen.compile(A, **ASKED)


def test_a_kernel_file_is_judged_and_timed(install, capsys):
    install(library=False)
    root = paths.data("cuda_templates").parent
    file, matrix = root / "cuda_templates/spmv/csr_scalar.cu", root / "matrices/tiny/gaps.mtx"
    assert main(["evaluate", str(file), str(matrix), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["instances"]
    timed = [each for each in found if each["level"] == "TIMED"]
    assert timed and all(each["measured_us"] > 0 for each in timed)
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["GPU"] == "Fake H200 sm_90 driver 13.2" and nvrtc.archs()[-1] in said["CUDA architectures"]


def test_a_kernel_explains_itself(install):
    install(library=False)
    kernel = kernel_of()
    assert "us a call on Fake H200 sm_90 driver 13.2" in kernel.explain() and "in its L2" in kernel.explain()
    assert "measured_cold_us" in str(kernel.report())


def test_what_a_gpu_times_is_timed_in_its_turn(install, monkeypatch, tmp_path):
    install(library=False)
    with asked_in_turns(tmp_path / "lock", monkeypatch) as asked:
        kernel_of()
    timed = {"baseline", "arm", "rounds", "cold"}
    assert timed <= {request for request, turn in asked if turn} and ("check", False) in asked
    assert not timed & {request for request, turn in asked if not turn}


def test_a_project_of_a_kernel_on_a_gpu_is_for_that_gpu(install, tmp_path):
    install(library=False)
    export.write(kernel_of(), tmp_path / "out")
    assert "CMAKE_CUDA_ARCHITECTURES 90" in (tmp_path / "out" / "CMakeLists.txt").read_text()
