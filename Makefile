# From a bare clone with Python 3.11+ (and its headers) and a C++ compiler:
#   make demo    the main job on a committed matrix, also inside scipy.sparse.linalg.cg
#   make test    the tests
# Each has its own virtual environment, made again when pyproject.toml or constraints.txt change.

PYTHON ?= python3
TESTS ?= -n 2

demo: .venv-demo/ready
	.venv-demo/bin/python experiments/demo.py

test: .venv-test/ready
	.venv-test/bin/python -m pytest $(TESTS)

lint: .venv-test/ready
	.venv-test/bin/ruff check .
	.venv-test/bin/mypy

.venv-demo/ready: extras = mkl
.venv-test/ready: extras = mkl,numba,torch,train,cuda,test
.venv-demo/ready .venv-test/ready: pyproject.toml constraints.txt sparsegen/_native.c $(wildcard sparsegen/ptx/*.[ch])
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[$(extras)]'
	touch $@

clean:
	rm -rf .venv-demo .venv-test build sparsegen.egg-info sparsegen/_native*.so sparsegen/ptx/_executor*.so

.PHONY: demo test lint clean
