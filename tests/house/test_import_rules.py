"""Check that the import rules hold and that each can fail: a copy of the packages with one bad import breaks the intended rule."""

import ast
import graphlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("assignors", "broker", "cli", "client", "fsm", "raft", "spark", "storage")
PRODUCT = ("api", "assignors", "broker", "cli", "client", "fsm", "raft", "storage")
LINT = Path(sys.executable).with_name("lint-imports")

BAD_IMPORTS = {
    "raft/bad.py": ("import time", "The pure packages know no clock, chance, disk, network or log"),
    "fsm/bad.py": ("import raftmq.raft.bad_helper", "The pure packages know no clock, chance, disk, network or log"),
    "client/bad.py": ("import raftmq.broker", "Client and broker never import each other"),
    "broker/bad.py": ("import raftmq.client", "Client and broker never import each other"),
    "client/bad_reach.py": ("import raftmq.storage", "The client knows only the protocol"),
    "errors.py": ("import raftmq.proto", "errors imports nothing of RaftMQ"),
    "types.py": ("import raftmq.errors", "types imports nothing of RaftMQ"),
    "raft/bad_layer.py": ("import raftmq.storage", "Layers, top to bottom"),
    "cli/bad.py": ("import raftmq.raft", "The command line uses the client, and starts the broker"),
    "spark/bad.py": ("import raftmq.broker", "Spark's source and sink use the client"),
    "broker/peers/bad.py": ("import raftmq.broker.services", "Rooms of the broker, top to bottom"),
    "client/codec/bad.py": ("import raftmq.client.producer", "Rooms of the client, top to bottom"),
    "spark/base/bad.py": ("import raftmq.spark.cluster", "Rooms of Spark's source and sink, top to bottom"),
    "spark/sink/ledger/bad.py": ("import raftmq.spark.sink.rows", "Rooms of Spark's sink, top to bottom"),
    "broker/bad_bare.py": ("import raftmq", "Packages import submodules, never the bare raftmq"),
    "pyspark_raftmq/__init__.py": ("import pyarrow", "The module that Spark discovers imports nothing heavy"),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the packages into a separate folder, laid out as they are imported."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "api", tmp_path / "raftmq", ignore=ignored)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / "raftmq" / package, ignore=ignored)
    shutil.copytree(ROOT / "pyspark_raftmq", tmp_path / "pyspark_raftmq", ignore=ignored)
    (tmp_path / "raftmq" / "raft" / "bad_helper.py").write_text('"""A way around."""\n')
    return tmp_path


def broken_rules(copy: Path) -> dict[str, str]:
    """Return the report on each broken rule."""
    environment = os.environ | {"PYTHONPATH": str(copy)}
    command = [str(LINT), "--config", str(ROOT / ".importlinter"), "--no-cache"]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert "Contracts:" in done.stdout, done.stdout + done.stderr
    summary, _, reports = done.stdout.partition("Broken contracts\n")
    # the number of ignored imports may follow the verdict
    broken = [line.partition(" BROKEN")[0] for line in summary.splitlines() if " BROKEN" in line]
    headings = [(name, f"\n{name}\n{'-' * len(name)}\n") for name in broken]
    return {name: reports.partition(heading)[2].partition("\n---")[0] for name, heading in headings}


def test_the_import_rules_hold(copy: Path) -> None:
    assert broken_rules(copy) == {}


def test_each_bad_import_breaks_its_rule(copy: Path) -> None:
    for file, (statement, _) in BAD_IMPORTS.items():
        target = copy / file if file.startswith("pyspark") else copy / "raftmq" / file
        kept = target.read_text() if target.exists() else ""
        target.write_text(f"{kept}\n{statement}\n")
    # an indirect import: what `fsm/bad.py` imports, imports the clock
    (copy / "raftmq" / "raft" / "bad_helper.py").write_text("import time\n")
    reports = broken_rules(copy)
    for file, (statement, rule) in BAD_IMPORTS.items():
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        importer = module if file.startswith("pyspark") else f"raftmq.{module}"
        assert f"{importer} -> {statement.removeprefix('import ')} (" in reports[rule], (file, reports[rule])


def test_every_rule_has_a_bad_import() -> None:
    names = [
        line.removeprefix("name = ")
        for line in (ROOT / ".importlinter").read_text().splitlines()
        if line.startswith("name = ")
    ]
    assert set(names) == {rule for _, rule in BAD_IMPORTS.values()}


def test_the_module_that_spark_discovers_loads_nothing_heavy() -> None:
    program = "import sys, pyspark_raftmq; print([m for m in ('grpc', 'pyspark', 'pyarrow', 'google.protobuf') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_raftmq_loads_nothing_heavy() -> None:
    program = "import sys, raftmq; print([m for m in ('grpc', 'lmdb', 'google.protobuf', 'uvloop', 'typer') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def circle_in(*packages: str) -> list[str]:
    """Return the modules of a circle of imports, imports for the type checker included (empty if there is none)."""
    graph = grimp.build_graph(*packages, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("packages", [("raftmq", "pyspark_raftmq"), ("sim",), ("bench",)])
def test_no_modules_import_each_other_in_a_circle(packages: tuple[str, ...]) -> None:
    assert circle_in(*packages) == []


def test_a_circle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "circular"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("from circular import two\n")
    (package / "two.py").write_text("if True:\n    import circular.one\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(circle_in("circular")) == {"circular.one", "circular.two"}


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def test_the_product_imports_no_decoder_that_executes_its_input() -> None:
    """PySyncObj unpickled bytes from its peers."""
    # A worker pickles only for processes that it started itself, through their own pipes.
    allowed = ["client/worker/process_executor.py: pickle"]
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node)
        if name.split(".")[0] in banned
    ]
    assert found == allowed
