"""Mutation testing: random faults in the code, each checked with the quick tests that run its line.

    pip install pytest-cov
    python -m tests.campaigns.mutants --work ~/mutants --count 100 --seed 7

A mutant is one change within a function: another operator, comparison or constant, a negation, or a
removed statement. For each mutant, the tests of README's command that run its line are started, the
most specific ones first, until one fails. Results are kept in the work folder, and the same command
resumes.

`--package` is the commit whose `kerasbert/` is changed, `--tests` the commit whose tests run. So
the same mutants can be tested before and after a change of the tests. With `--only tests/losses`,
mutants are drawn from lines that tests in that folder run, and only these tests run.
"""

import argparse
import ast
import concurrent.futures
import contextlib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUICK = "not slow and not peers"
SECONDS = 900  # Seconds after which a mutant counts as killed, because it hangs.
OTHERS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


def changed(node):
    """Return possible replacements of a syntax tree node: a list of (kind, source)."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHERS:
        new = ast.Compare(node.left, [OTHERS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
        return [("comparison", f"({ast.unparse(new)})")]
    if isinstance(node, ast.BinOp) and type(node.op) in OTHERS:
        if isinstance(node.left, ast.JoinedStr) or "%" in ast.unparse(node.left)[:1]:
            return []
        new = ast.BinOp(node.left, OTHERS[type(node.op)](), node.right)
        return [("operator", f"({ast.unparse(new)})")]
    if isinstance(node, ast.BoolOp):
        new = ast.BoolOp(OTHERS[type(node.op)](), node.values)
        return [("operator", f"({ast.unparse(new)})")]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [("operator", f"({ast.unparse(node.operand)})")]
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        new = not node.value if isinstance(node.value, bool) else node.value * 2 + 1
        return [("constant", repr(new))]
    if isinstance(node, (ast.AugAssign, ast.Raise)):
        return [("statement", "pass")]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return [("statement", "pass")]
    return []


def mutants(package):
    """Return all mutants of a package: dicts of file, lines (first and last), span, kind and
    source.
    """
    found = []
    for folder, folders, names in os.walk(package):
        folders.sort()
        for name in sorted(names):
            if not name.endswith(".py"):
                continue
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                tree = ast.parse(file.read())
            seen = set()
            for outer in ast.walk(tree):
                if not isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                for node in (n for part in outer.body for n in ast.walk(part)):
                    if id(node) in seen:
                        continue
                    seen.add(id(node))
                    for kind, source in changed(node):
                        span = [node.lineno, node.col_offset, node.end_lineno, node.end_col_offset]
                        file = os.path.relpath(path, os.path.dirname(package))
                        found.append({"file": file, "span": span, "kind": kind, "source": source})
    return found


@contextlib.contextmanager
def mutated(tree, mutant):
    """Replace the mutant's file in `tree` while this context is active."""
    path = os.path.join(tree, mutant["file"])
    with open(path, "rb") as file:
        before = file.read()
    lines = before.splitlines(keepends=True)  # Column numbers of `ast` count bytes.
    first, start, last, end = mutant["span"]
    begins = sum(map(len, lines[: first - 1])) + start
    ends = sum(map(len, lines[: last - 1])) + end
    try:
        with open(path, "wb") as file:
            file.write(before[:begins] + mutant["source"].encode() + before[ends:])
        yield
    finally:
        with open(path, "wb") as file:
            file.write(before)


def checkout(target, package, tests):
    """Make a copy of the commit `tests` with the `kerasbert/` of the commit `package`."""
    if os.path.exists(os.path.join(target, "whole")):
        return
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["git", "clone", "-q", ROOT, target], check=True)
    for commit, *path in ((tests,), (package, "--", "kerasbert")):
        if path:
            shutil.rmtree(os.path.join(target, "kerasbert"))
        subprocess.run(["git", "checkout", "-q", commit, *path], cwd=target, check=True)
    shared = os.path.join(os.path.dirname(ROOT), "shared")
    link = os.path.join(os.path.dirname(target), "shared")
    if os.path.exists(shared) and not os.path.exists(link):
        os.symlink(shared, link)
    open(os.path.join(target, "whole"), "w").close()


def pytest(tree, *arguments, timeout=None):
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": tree,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command,
        cwd=tree,
        env=environment,
        timeout=timeout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def tests_of_lines(tree, path, only):
    """Return which quick tests run which lines: a dict of file to dict of line to tests."""
    if not os.path.exists(path):
        data = os.path.join(tree, ".coverage")
        arguments = ("--cov=kerasbert", "--cov-context=test", "--cov-report=")
        made = pytest(tree, "-m", QUICK, "-n", "2", "--dist", "loadfile", *arguments, *only)
        print(made.stdout[-400:], flush=True)
        # A test that fails even without a mutant cannot detect one.
        failing = set(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", made.stdout, re.M))
        import coverage

        read = coverage.CoverageData(data)
        read.read()
        lines = {}
        for file in read.measured_files():
            contexts = read.contexts_by_lineno(file)
            lines[os.path.relpath(file, tree)] = {
                line: sorted({_who(name) for name in names} - {""} - failing)
                for line, names in contexts.items()
            }
        with open(path + ".new", "w") as file:
            json.dump(lines, file)
        os.replace(path + ".new", path)
    with open(path) as file:
        return json.load(file)


def _who(context):
    """Return the test that ran a line, or its file if a fixture ran the line, because other tests
    may share it.
    """
    test, _, phase = context.rpartition("|")
    return test.partition("::")[0] if phase == "setup" else test


def judge(mutant, tree, lines, weights):
    """Return the mutant with its result: "killed", "survived", or "no test"."""
    of_file = lines.get(mutant["file"], {})
    span = range(mutant["span"][0], mutant["span"][2] + 1)
    tests = {test for line in span for test in of_file.get(str(line), ())}
    files = {test for test in tests if "::" not in test}
    tests |= {test for test in weights if test.partition("::")[0] in files}
    tests -= files
    tests = sorted(tests, key=lambda test: (weights[test], test))
    result = {**mutant, "tests": len(tests)}
    if not tests:
        return {**result, "result": "no test"}
    listed = os.path.join(os.path.dirname(tree), f"{os.path.basename(tree)}.txt")
    with open(listed, "w") as file:
        file.write("\n".join(tests))
    started = time.time()
    with mutated(tree, mutant):
        try:
            run = pytest(tree, "-x", f"@{listed}", timeout=SECONDS)
            said = {0: "survived", 1: "killed"}.get(run.returncode)
            # Import errors count as killed; missing test names do not.
            said = said or ("killed" if run.returncode != 4 else "error")
            failed = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
            result["by"] = failed[0][:200] if failed else run.stdout[-300:]
        except subprocess.TimeoutExpired:
            said, result["by"] = "killed", f"more than {SECONDS} s"
    return {**result, "result": said, "seconds": round(time.time() - started)}


def run(work, package, tests, count, seed, processes, only=()):
    work = os.path.abspath(os.path.expanduser(work))
    os.makedirs(work, exist_ok=True)
    trees = queue.Queue()
    for number in range(processes):
        tree = os.path.join(work, f"tree{number}")
        checkout(tree, package, tests)
        trees.put(tree)
    lines = tests_of_lines(os.path.join(work, "tree0"), os.path.join(work, "lines.json"), only)
    weights = {}
    for of_file in lines.values():
        for names in of_file.values():
            for name in names:
                weights[name] = weights.get(name, 0) + 1
    possible = mutants(os.path.join(work, "tree0", "kerasbert"))
    if only:
        possible = [x for x in possible if lines.get(x["file"], {}).get(str(x["span"][0]))]
    drawn = random.Random(seed).sample(possible, count)
    results = os.path.join(work, f"results-{seed}.jsonl")
    known = {}
    with contextlib.suppress(FileNotFoundError), open(results) as file:
        rows = [json.loads(line) for line in file]
        known = {(row["file"], *row["span"], row["source"]): row for row in rows}

    def one(mutant):
        key = (mutant["file"], *mutant["span"], mutant["source"])
        if key not in known:
            tree = trees.get()
            known[key] = judge(mutant, tree, lines, weights)
            trees.put(tree)
            with open(results, "a") as file:
                file.write(json.dumps(known[key]) + "\n")
        return known[key]

    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        return list(pool.map(one, drawn))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", required=True)
    parser.add_argument("--package", default="HEAD")
    parser.add_argument("--tests", default="HEAD")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    rows = run(**vars(parser.parse_args()))
    counted = {}
    for row in rows:
        counted[row["result"]] = counted.get(row["result"], 0) + 1
        if row["result"] != "killed":
            print(f"{row['result']}: {row['file']}:{row['span'][0]} {row['kind']}: {row['source']}")
    print(counted)


if __name__ == "__main__":
    main()
