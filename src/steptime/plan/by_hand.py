"""A plan as a change of the user's own script: a unified diff of what can be edited with confidence.

Only places are edited that the syntax tree shows beyond doubt, such as a keyword added to `torch.optim.AdamW(...)`.
The fields that stay out of the diff are named, each with the reason, by `what_remains`.
"""

from __future__ import annotations

import ast
import difflib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steptime.errors import SteptimeError
from steptime.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class _Script:
    """The text, its tree, and the edits found so far."""

    text: str
    tree: ast.Module
    names: dict[str, str]
    """Local name -> the full name it was imported as, e.g. "nn" -> "torch.nn"."""
    inserts: list[tuple[int, str]] = field(default_factory=list)
    """Character offset -> text to insert there."""
    lines: list[tuple[int, str]] = field(default_factory=list)
    """Line number -> whole lines to insert after it."""
    remains: dict[str, str] = field(default_factory=dict)

    def full_name(self, node: ast.expr) -> str:
        """The dotted name that an expression was imported as, empty when it is none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.names:
            return ""
        return ".".join([self.names[node.id], *reversed(parts)])

    def calls(self, *names: str) -> list[ast.Call]:
        """The calls of functions and classes by their full names."""
        return [
            node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and self.full_name(node.func) in names
        ]

    def offset(self, line: int, column: int) -> int:
        """Character offset of a position of the tree; its columns count UTF-8 bytes."""
        lines = _lines(self.text)
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    def add_keyword(self, call: ast.Call, name: str, value: str) -> None:
        """`f(a)` becomes `f(a, name=value)`, before the closing bracket and after a trailing comma if there is one."""
        assert call.end_lineno is not None
        assert call.end_col_offset is not None
        closing = self.offset(call.end_lineno, call.end_col_offset) - 1
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not arguments:
            self.inserts.append((closing, f"{name}={value}"))
            return
        last = max(arguments, key=lambda one: (one.end_lineno or 0, one.end_col_offset or 0))
        # right behind the last argument: what follows may be a comma, a comment, a generator's bracket
        end = self.offset(last.end_lineno or 0, last.end_col_offset or 0)
        while end < closing and self.text[end] in ") \t" and self.text[end:closing].count(")") > 0:
            end += 1
        self.inserts.append((end, f", {name}={value}"))


def unified_diff(script: Path, plan: Plan) -> str | None:
    """The diff that `patch -p1` applies in the script's folder; None when nothing can be edited with confidence.

    Raises:
        SteptimeError: the script cannot be read or is not Python.
    """
    before, after, _ = _edited(script, plan)
    if after == before:
        return None
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{script.name}", f"b/{script.name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def what_remains(script: Path, plan: Plan) -> dict[str, str]:
    """Fields of the plan that `unified_diff` leaves out, each with the reason.

    Raises:
        SteptimeError: as `unified_diff`.
    """
    return _edited(script, plan)[2]


def _edited(path: Path, plan: Plan) -> tuple[str, str, dict[str, str]]:
    try:
        text = path.read_bytes().decode("utf-8")  # as it is: CRLF stays CRLF
        tree = ast.parse(text)
    except OSError as error:
        raise SteptimeError(f"cannot be read ({error.strerror})", where=str(path)) from None
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise SteptimeError(f"not Python source: {error}", where=str(path)) from None
    script = _Script(text=text, tree=tree, names=_imported(tree))
    for name, value in plan.difference().items():
        editor = _EDITORS.get(name)
        if editor is None:
            script.remains[name] = _UNEDITABLE.get(name, "steptime run applies it; there is no one-line equivalent")
        else:
            reason = editor(script, value)
            if reason is not None:
                script.remains[name] = reason
    after = _applied(script)
    try:
        ast.parse(after)
    except SyntaxError:
        # an edit that breaks the script is worse than none
        return text, text, dict.fromkeys(plan.difference(), "the script's layout does not allow a safe edit")
    return text, after, script.remains


def _applied(script: _Script) -> str:
    text = script.text
    newline = "\r\n" if "\r\n" in text else "\n"
    starts = [0]
    for line in _lines(text):
        starts.append(starts[-1] + len(line))
    edits = list(script.inserts)
    edits += [(starts[number], added.replace("\n", newline)) for number, added in script.lines]
    # from the end, so that offsets stay true; of several at one place the first asked for comes first
    for _, (offset, added) in sorted(enumerate(edits), key=lambda one: (one[1][0], one[0]), reverse=True):
        if offset == len(text) and text and not text.endswith("\n"):
            added = newline + added
        text = text[:offset] + added + text[offset:]
    return text


def _lines(text: str) -> list[str]:
    """Lines as Python's parser counts them, with their ends; `str.splitlines` would split at form feeds too."""
    return list(io.StringIO(text, newline=""))


def _imported(tree: ast.Module) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                names[one.asname or one.name.partition(".")[0]] = one.name if one.asname else one.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                names[one.asname or one.name] = f"{node.module}.{one.name}"
    return names


def _keywords(call: ast.Call) -> set[str | None]:
    return {keyword.arg for keyword in call.keywords}


_OPTIMIZERS = {
    "fused": ("Adam", "AdamW", "SGD", "Adagrad"),
    "foreach": ("Adam", "AdamW", "SGD", "Adagrad", "NAdam", "RAdam", "RMSprop", "Adadelta", "Adamax", "Rprop", "ASGD"),
}


def _optimizer(script: _Script, value: str) -> str | None:
    kinds = _OPTIMIZERS[value]
    names = [f"torch.optim.{one}" for one in kinds] + [f"torch.optim.{one.lower()}.{one}" for one in kinds]
    calls = script.calls(*names)
    if not calls:
        return "no construction of a torch.optim optimizer was found"
    edited = False
    for call in calls:
        if not _keywords(call) & {"fused", "foreach", None}:
            script.add_keyword(call, value, "True")
            edited = True
    return None if edited else "the optimizer is constructed with an implementation, or with **arguments"


def _loader(parameter: str) -> Callable[[_Script, Any], str | None]:
    def edit(script: _Script, value: Any) -> str | None:
        calls = script.calls("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
        if len(calls) > 1:
            calls = [call for call in calls if _shuffles(call)]
        if len(calls) != 1:
            return f"which of the DataLoaders trains is not beyond doubt ({len(calls)} candidates)"
        call = calls[0]
        if None in _keywords(call) or any(isinstance(one, ast.Starred) for one in call.args):
            return "the DataLoader takes **arguments"
        given = next((keyword.value for keyword in call.keywords if keyword.arg == parameter), None)
        if given is None:
            script.add_keyword(call, parameter, repr(value))
            return None
        return f"the script sets {parameter}={ast.unparse(given)} itself (line {call.lineno}); write {value!r} there"

    return edit


def _shuffles(call: ast.Call) -> bool:
    shuffle = next((keyword.value for keyword in call.keywords if keyword.arg == "shuffle"), None)
    if isinstance(shuffle, ast.Constant):
        return bool(shuffle.value)
    return shuffle is not None or bool(_keywords(call) & {"sampler", "batch_sampler"})


def _after_imports(template: str) -> Callable[[_Script, Any], str | None]:
    """A statement after the last import of the module's head; needs torch under the name `torch`."""

    def edit(script: _Script, value: Any) -> str | None:
        if script.names.get("torch") != "torch":
            return "the script does not import torch by that name"
        line = 0
        bound = False
        for node in script.tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                line = node.end_lineno or line
                bound = bound or (
                    isinstance(node, ast.Import) and any(one.name.startswith("torch") for one in node.names)
                )
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                break
        if not bound:
            return "torch is not imported at the head of the script"
        script.lines.append((line, template.format(value=value) + "\n"))
        return None

    return edit


def _call_names(function: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def _model(script: _Script) -> tuple[ast.Assign, str, ast.AST] | str:
    """The one assignment of the model, its name and its scope: the name whose `.parameters()` an optimizer is given."""
    found: list[tuple[ast.Assign, str, ast.AST]] = []
    scopes: list[ast.AST] = [script.tree, *(n for n in ast.walk(script.tree) if isinstance(n, ast.FunctionDef))]
    for scope in scopes:
        body = getattr(scope, "body", [])
        names = {
            argument.func.value.id
            for statement in body
            if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
            for call in _call_names(statement)
            if script.full_name(call.func).startswith("torch.optim.")
            for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
            if isinstance(argument, ast.Call)
            and isinstance(argument.func, ast.Attribute)
            and argument.func.attr == "parameters"
            and isinstance(argument.func.value, ast.Name)
        }
        for name in names:
            assigned = [one for one in body if isinstance(one, ast.Assign) and _assigns(one, name)]
            if len(assigned) != 1:
                return f"the construction of {name} is not one plain assignment"
            found.append((assigned[0], name, scope))
    if len(found) != 1:
        return f"which module trains is not beyond doubt ({len(found)} candidates)"
    return found[0]


def _assigns(statement: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)


def _compiler(script: _Script, value: str) -> str | None:
    if script.names.get("torch") != "torch":
        return "the script does not import torch by that name"
    found = _model(script)
    if isinstance(found, str):
        return found
    assignment, name, _ = found
    # in place: torch.compile(model) would put _orig_mod. in front of every name of the state_dict
    argument = "" if value == "default" else f'mode="{value}"'
    line = _lines(script.text)[assignment.lineno - 1]
    indent = line[: len(line) - len(line.lstrip())]
    script.lines.append((assignment.end_lineno or 0, f"{indent}{name}.compile({argument})\n"))
    return None


def _autocast(script: _Script, value: str) -> str | None:
    if value == "fp16":
        return "fp16 needs a GradScaler around backward and step; steptime run brings one"
    if script.names.get("torch") != "torch":
        return "the script does not import torch by that name"
    found = _model(script)
    if isinstance(found, str):
        return found
    _, name, scope = found
    statements = [
        statement
        for statement in ast.walk(scope)
        if isinstance(statement, ast.Assign)
        and any(isinstance(call.func, ast.Name) and call.func.id == name for call in _call_names(statement.value))
    ]
    if len(statements) != 1:
        return f"{name} is called in {len(statements)} places"
    statement = statements[0]
    if statement.lineno != statement.end_lineno:
        return f"the call of {name} spans several lines"
    call = next(one for one in _call_names(statement.value) if isinstance(one.func, ast.Name) and one.func.id == name)
    if statement.value is not call and not _is_loss(statement.value):
        return f"the call of {name} is inside a larger expression"
    line = _lines(script.text)[statement.lineno - 1]
    if line.strip() != ast.get_source_segment(script.text, statement):
        return f"the line that calls {name} holds more than that"
    indent = line[: len(line) - len(line.lstrip())]
    opening = f"{indent}with torch.autocast(next({name}.parameters()).device.type, dtype=torch.bfloat16):\n"
    script.inserts.append((script.offset(statement.lineno, 0), opening + ("\t" if "\t" in indent else "    ")))
    return None


def _is_loss(value: ast.expr) -> bool:
    """`criterion(model(x), y)`: under autocast torch runs its losses in float32 by itself."""
    return isinstance(value, ast.Call)


_EDITORS: dict[str, Callable[[_Script, Any], str | None]] = {
    "optimizer.implementation": _optimizer,
    "data.workers": _loader("num_workers"),
    "data.prefetch_factor": _loader("prefetch_factor"),
    "data.pin_memory": _loader("pin_memory"),
    "data.persistent_workers": _loader("persistent_workers"),
    "process.threads": _after_imports("torch.set_num_threads({value})"),
    "process.interop_threads": _after_imports("torch.set_num_interop_threads({value})"),
    "process.flush_denormal": _after_imports("torch.set_flush_denormal({value})"),
    "process.mkldnn": _after_imports("torch.backends.mkldnn.enabled = {value}"),
    "precision.matmul": _after_imports('torch.set_float32_matmul_precision("{value}")'),
    "precision.autocast": _autocast,
    "compiler.mode": _compiler,
}
_UNEDITABLE = {
    "process.allocator": "it is set by environment variables before the process starts",
    "process.affinity": "it is set by environment variables before the process starts",
    "kernels.dropout": "the kernel comes with steptime: keep using steptime run",
    "kernels.gelu": "the kernel comes with steptime: keep using steptime run",
    "kernels.feed_forward": "the kernel comes with steptime: keep using steptime run",
    "kernels.attention": "the kernel comes with steptime: keep using steptime run",
    "data.prefetch_thread": "the thread comes with steptime: keep using steptime run",
}
