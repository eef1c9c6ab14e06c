"""The package as syntax trees: its classes, the types that annotations give, and every write to an attribute.

This is no type checker. It follows annotations, constructors and return types as far as the questions of `house.py` and
`tests/architecture` need: which class has the attribute that a statement assigns or changes in place?
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MUTATORS = frozenset(
    {"add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert"}
    | {"intersection_update", "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault"}
    | {"sort", "symmetric_difference_update", "update"}
)
"""Methods of the standard containers that change them in place."""

CHANGING_FUNCTIONS = frozenset({"heappush", "heappop", "heapify", "heapreplace", "heappushpop", "insort", "shuffle"})
"""Functions that change their first argument in place."""

_VIEWS = frozenset({"get", "setdefault", "values", "items", "keys"})
_MAPPINGS = frozenset({"dict", "defaultdict", "OrderedDict", "Mapping", "MutableMapping", "Counter"})
_ITERABLES = frozenset(
    {"list", "set", "frozenset", "deque", "tuple", "Sequence", "MutableSequence", "Iterable", "Iterator"}
    | {"Collection", "MutableSet", "Set"}
)


@dataclass(frozen=True)
class Container:
    """A type of the standard library with its arguments: `dict[str, Lease]`."""

    name: str
    args: tuple[Type, ...] = ()


@dataclass(frozen=True)
class Callee:
    """Something that is called: a class (its call makes an instance), or a function with its return annotation."""

    made: ClassInfo | None
    returns: ast.expr | None = None
    module: str = ""


@dataclass(eq=False)
class ClassInfo:
    """One class. `fields` are the attributes that its own body or methods assign, with their annotation or value."""

    name: str
    module: str
    node: ast.ClassDef
    fields: dict[str, tuple[ast.expr | None, ast.expr | None, ast.FunctionDef | None]] = field(default_factory=dict)
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)


Type = ClassInfo | Container | Callee | None


@dataclass(frozen=True)
class Write:
    """One statement that changes an attribute. `owner` is the class that has it, if that is known.

    `path` is the expression as written. `fresh` means that the object was made in the same function. `callable` means
    that a function is stored.
    """

    module: str
    line: int
    owner: ClassInfo | None
    attribute: str
    path: str
    in_place: bool
    fresh: bool = False
    callable: bool = False

    def __str__(self) -> str:
        """File, line, and what is changed."""
        owner = "?" if self.owner is None else self.owner.name
        return f"{self.module}:{self.line}: {self.path} ({owner}.{self.attribute})"


class Source:
    """All modules below a directory, by their path relative to it."""

    def __init__(self, root: Path, package: str = "paceline") -> None:
        self.package = package
        self.trees: dict[str, ast.Module] = {}
        self.lines: dict[str, int] = {}
        self.classes: dict[str, dict[str, ClassInfo]] = {}
        self._names: dict[str, dict[str, tuple[str, str]]] = {}  # what each module imports: name -> (module, name)
        self._aliases: dict[str, dict[str, ast.expr]] = {}
        self._functions: dict[str, dict[str, ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._bases: dict[ClassInfo, list[ClassInfo]] = {}
        self._attributes: dict[tuple[ClassInfo, str], Type] = {}
        for path in sorted(root.rglob("*.py")):
            self._read(str(path.relative_to(root)), path.read_text())

    def _read(self, module: str, text: str) -> None:
        tree = ast.parse(text)
        self.trees[module], self.lines[module] = tree, len(text.splitlines())
        classes, names = self.classes.setdefault(module, {}), self._names.setdefault(module, {})
        aliases, functions = self._aliases.setdefault(module, {}), self._functions.setdefault(module, {})
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for name in node.names:
                    names[name.asname or name.name] = (node.module, name.name)
            elif isinstance(node, ast.ClassDef):
                classes[node.name] = _class(node, module)
        for statement in tree.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                functions[statement.name] = statement
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                aliases[statement.targets[0].id] = statement.value

    # ------------------------------------------------------------ names and types

    def imports(self, module: str) -> set[str]:
        """The modules of the package that `module` imports names from."""
        found = {self._file(name) for name, _ in self._names[module].values()}
        found |= {self._file(f"{name}.{item}") for name, item in self._names[module].values()}
        return found & set(self.trees)

    def _file(self, dotted: str) -> str:
        path = dotted.removeprefix(f"{self.package}.").replace(".", "/")
        return f"{path}/__init__.py" if f"{path}/__init__.py" in self.trees else f"{path}.py"

    def find(self, module: str, name: str, seen: frozenset[str] = frozenset()) -> ClassInfo | Callee | None:
        """What `name` means in `module`: a class or a function of the package."""
        if module not in self.classes or module in seen:
            return None
        if name in self.classes[module]:
            return self.classes[module][name]
        if name in self._functions[module]:
            return Callee(None, self._functions[module][name].returns, module)
        if name in self._names[module]:
            source, original = self._names[module][name]
            return self.find(self._file(source), original, seen | {module})
        return None

    def bases(self, info: ClassInfo) -> list[ClassInfo]:
        """The class and all its bases in the package, nearest first; protocols have no state and are left out."""
        if info in self._bases:
            return self._bases[info]
        found = self._bases[info] = [info]
        for base in info.node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            base_info = self.find(info.module, name.id) if isinstance(name, ast.Name) else None
            if isinstance(base_info, ClassInfo) and not _is_protocol(base_info):
                found += self.bases(base_info)
        return found

    def definer(self, info: ClassInfo, attribute: str) -> ClassInfo | None:
        """The class among `info` and its bases that has `attribute`: the most basic one, where several assign it."""
        for base in reversed(self.bases(info)):
            if attribute in base.fields or attribute in base.methods:
                return base
        return None

    def annotation(self, node: ast.expr | None, module: str, depth: int = 0) -> Type:
        """The type that an annotation names; of a union, the first part that is not None."""
        if depth > 8:
            return None
        match node:
            case ast.Constant(value=str(text)):
                return self.annotation(ast.parse(text, mode="eval").body, module, depth + 1)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.annotation(left, module, depth + 1) or self.annotation(right, module, depth + 1)
            case ast.Name(id=name):
                found = self.find(module, name)
                if isinstance(found, ClassInfo):
                    return found
                if name in self._aliases.get(module, {}):
                    return self.annotation(self._aliases[module][name], module, depth + 1)
                return Container(name) if name in _MAPPINGS | _ITERABLES | {"Callable"} else None
            case ast.Subscript(value=ast.Name(id=name), slice=inner):
                found = self.find(module, name)
                if isinstance(found, ClassInfo):
                    return found
                args = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                if name in ("Final", "ClassVar", "Optional"):
                    return self.annotation(args[0], module, depth + 1)
                return Container(name, tuple(self.annotation(a, module, depth + 1) for a in args))
        return None

    def attribute(self, info: ClassInfo, name: str, depth: int = 0) -> Type:
        """The type of an attribute, of a property's value, or of a method."""
        if (info, name) not in self._attributes:
            self._attributes[info, name] = None  # an attribute that is assigned from itself ends here
            self._attributes[info, name] = self._attribute(info, name, depth)
        return self._attributes[info, name]

    def _attribute(self, info: ClassInfo, name: str, depth: int) -> Type:
        for base in self.bases(info):
            if name in base.methods:
                method = base.methods[name]
                if any(
                    isinstance(d, ast.Name) and d.id in ("property", "cached_property") for d in method.decorator_list
                ):
                    return self.annotation(method.returns, base.module)
                return Callee(None, method.returns, base.module)
        definer = self.definer(info, name)
        if definer is None or name not in definer.fields or depth > 8:
            return None
        annotation, value, function = definer.fields[name]
        if annotation is not None:
            return self.annotation(annotation, definer.module)
        if value is None:
            return None
        scope = Scope(self, definer.module, definer)
        if function is not None:
            scope.parameters(function)
        return scope.type(value, depth + 1)

    # ------------------------------------------------------------ writes

    def writes(self, module: str) -> Iterator[Write]:
        """Every statement of `module` that assigns an attribute of an object, or changes in place what it holds."""
        for function, scope in self._scopes(module):
            found: set[tuple[int, ClassInfo | None, str]] = set()
            for write in scope.writes(function):
                key = (write.line, write.owner, write.attribute)
                if key not in found:  # `x.a.setdefault(k, []).append(…)` is one statement
                    found.add(key)
                    yield write

    def _scopes(self, module: str) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope]]:
        for function in self._functions[module].values():
            yield function, Scope(self, module, None)
        for info in self.classes[module].values():
            for method in info.methods.values():
                yield method, Scope(self, module, info)

    def late_callables(self, module: str) -> Iterator[Write]:
        """Assignments in `module` of a function to an attribute of another module's class."""
        for write in self.writes(module):
            owner = write.owner
            if owner is not None and not write.in_place and owner.module != module and not write.fresh:
                annotation = owner.fields.get(write.attribute, (None, None, None))[0]
                kept = self.annotation(annotation, owner.module)
                if write.callable or (isinstance(kept, Container) and kept.name == "Callable"):
                    yield write


class Scope:
    """The names inside one function: their types, and the attributes that local names stand for."""

    def __init__(self, source: Source, module: str, info: ClassInfo | None) -> None:
        self._source = source
        self._module = module
        self._types: dict[str, Type] = {} if info is None else {"self": info}
        self._stands_for: dict[str, ast.expr] = {}  # names that are an attribute, or a part of what it holds
        self._fresh: set[str] = set()

    def parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        """Take the annotations of the parameters."""
        spec = function.args
        for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
            if arg.annotation is not None:
                self._types[arg.arg] = self._source.annotation(arg.annotation, self._module)

    # ------------------------------------------------------------ types of expressions

    def type(self, node: ast.expr, depth: int = 0) -> Type:
        """The type of an expression, as far as annotations tell it."""
        if depth > 12:
            return None
        match node:
            case ast.Name(id=name):
                if name in self._types:
                    return self._types[name]
                known = self._source.find(self._module, name)
                return Callee(known) if isinstance(known, ClassInfo) else known
            case ast.Attribute(value=value, attr=attr):
                inner = self.type(value, depth + 1)
                return self._source.attribute(inner, attr, depth + 1) if isinstance(inner, ClassInfo) else None
            case ast.Call():
                return self._called(node, depth)
            case ast.Subscript(value=value, slice=ast.Slice()):
                return self.type(value, depth + 1)
            case ast.Subscript(value=value):
                return _element(self.type(value, depth + 1))
            case ast.IfExp(body=body, orelse=orelse):
                return self.type(body, depth + 1) or self.type(orelse, depth + 1)
            case ast.BoolOp(values=values):
                return next((found for v in values if (found := self.type(v, depth + 1)) is not None), None)
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return self.type(value, depth + 1)
            case ast.Dict() | ast.DictComp():
                return Container("dict")
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                return Container("list", (self.type(element, depth + 1),))
            case ast.List() | ast.Set():
                return Container("list")
        return None

    def _called(self, node: ast.Call, depth: int) -> Type:
        function = node.func
        if isinstance(function, ast.Attribute):
            inner = self.type(function.value, depth + 1)
            if isinstance(inner, Container):
                if function.attr in ("get", "pop", "popleft", "setdefault"):
                    return _element(inner)
                if function.attr == "values":
                    return Container("list", inner.args[1:2])
                if function.attr == "items":
                    return Container("list", (Container("tuple", inner.args),))
                return None
        found = self.type(function, depth + 1)
        if isinstance(found, Callee):
            return found.made if found.made is not None else self._source.annotation(found.returns, found.module)
        if isinstance(function, ast.Name) and function.id in _MAPPINGS | _ITERABLES | {"sorted", "reversed"}:
            first = self.type(node.args[0], depth + 1) if node.args else None
            args = first.args if isinstance(first, Container) else ()
            return Container(function.id if function.id in _MAPPINGS else "list", args)
        return None

    # ------------------------------------------------------------ writes

    def writes(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Write]:
        """Every write of the function, in order."""
        self.parameters(function)
        yield from self._body(function.body)

    def _body(self, body: list[ast.stmt]) -> Iterator[Write]:
        for statement in body:
            yield from self._statement(statement)

    def _statement(self, node: ast.stmt) -> Iterator[Write]:
        for expression in _expressions(node):
            yield from self._calls(expression)
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from self._assigned(target, value)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                yield from self._assigned(target, value)
                if isinstance(target, ast.Name):
                    self._types[target.id] = self._source.annotation(annotation, self._module)
            case ast.AugAssign(target=target, value=value):
                if isinstance(target, ast.Name):
                    if isinstance(self._types.get(target.id), Container):
                        yield from self._changed(target)
                else:
                    yield from self._assigned(target, None)
            case ast.Delete(targets=targets):
                for target in targets:
                    yield from self._assigned(target, None)
            case ast.For(target=target, iter=source) | ast.AsyncFor(target=target, iter=source):
                self._bind_elements(target, source)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    if isinstance(item.optional_vars, ast.Name):
                        self._bind(item.optional_vars.id, item.context_expr)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.parameters(node)
        for name in ("body", "orelse", "finalbody"):
            yield from self._body(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            yield from self._body(handler.body)
        for case in getattr(node, "cases", []):
            if isinstance(node, ast.Match):
                self._bind_case(case.pattern, node.subject)
            yield from self._body(case.body)

    def _calls(self, expression: ast.expr) -> Iterator[Write]:
        for node in ast.walk(expression):
            if isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
                self._bind(node.target.id, node.value)
            elif isinstance(node, ast.comprehension):
                self._bind_elements(node.target, node.iter)
        for node in ast.walk(expression):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr in MUTATORS:
                if not isinstance(self.type(function.value), ClassInfo):
                    yield from self._changed(function.value)
            elif isinstance(function, ast.Name) and function.id in CHANGING_FUNCTIONS and node.args:
                yield from self._changed(node.args[0])
            elif isinstance(function, ast.Name) and function.id == "setattr" and node.args:
                yield self._write(node.args[0], ast.unparse(node.args[1]), node, in_place=False)

    def _assigned(self, target: ast.expr, value: ast.expr | None) -> Iterator[Write]:
        match target:
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(targets) else []
                for number, part in enumerate(targets):
                    yield from self._assigned(part, values[number] if values else None)
                if not values and isinstance(value, ast.expr):
                    self._bind_parts(targets, self.type(value))
            case ast.Starred(value=part):
                yield from self._assigned(part, None)
            case ast.Name(id=name):
                self._bind(name, value)
            case ast.Attribute(value=holder, attr=attr):
                yield self._write(holder, attr, target, in_place=False, value=value)
            case ast.Subscript(value=holder):
                yield from self._changed(holder)

    def _changed(self, node: ast.expr) -> Iterator[Write]:
        """What `node` names is changed in place: find the attribute that holds it."""
        at = node
        for _ in range(12):
            match at:
                case ast.Attribute(value=holder, attr=attr):
                    yield self._taken_over(holder, attr, node) or self._write(holder, attr, node, in_place=True)
                    return
                case ast.Subscript(value=inner):
                    at = inner
                case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _VIEWS:
                    at = inner
                case ast.Name(id=name) if name in self._stands_for:
                    at = self._stands_for[name]
                case _:
                    return

    def _taken_over(self, holder: ast.expr, attribute: str, node: ast.expr) -> Write | None:
        """The write to another object's container that the holder's constructor took over: `self._x = other.x`."""
        info = self.type(holder)
        definer = self._source.definer(info, attribute) if isinstance(info, ClassInfo) else None
        _, value, function = (
            (None, None, None) if definer is None else definer.fields.get(attribute, (None, None, None))
        )
        if definer is None or function is None or not isinstance(value, ast.Attribute):
            return None
        scope = Scope(self._source, definer.module, definer)
        scope.parameters(function)
        if not isinstance(scope.type(value), Container):
            return None
        found = scope._write(value.value, value.attr, value, in_place=True)
        return Write(self._module, node.lineno, found.owner, found.attribute, ast.unparse(node), in_place=True)

    def _write(
        self, holder: ast.expr, attribute: str, node: ast.expr, *, in_place: bool, value: ast.expr | None = None
    ) -> Write:
        found = self.type(holder)
        owner = self._source.definer(found, attribute) or found if isinstance(found, ClassInfo) else None
        fresh = isinstance(holder, ast.Name) and holder.id in self._fresh
        stored = isinstance(value, ast.Lambda) or (value is not None and isinstance(self.type(value), Callee))
        return Write(self._module, node.lineno, owner, attribute, ast.unparse(node), in_place, fresh, stored)

    # ------------------------------------------------------------ local names

    def _bind(self, name: str, value: ast.expr | None) -> None:
        self._stands_for.pop(name, None)
        self._fresh.discard(name)
        if value is None:
            self._types[name] = None
            return
        self._types[name] = self.type(value)
        if self._is_held(value):
            self._stands_for[name] = value
        elif isinstance(value, ast.Call) and isinstance(self.type(value.func), Callee):
            made = self.type(value.func)
            if isinstance(made, Callee) and made.made is not None:
                self._fresh.add(name)

    def _is_held(self, value: ast.expr) -> bool:
        """Whether the value is an attribute, or is inside what one holds."""
        match value:
            case ast.Attribute():
                return True
            case ast.Subscript(value=inner):
                return self._is_held(inner)
            case ast.Call(func=ast.Attribute(value=inner, attr=name)):
                return name in _VIEWS and not isinstance(self.type(inner), ClassInfo) and self._is_held(inner)
            case ast.Name(id=name):
                return name in self._stands_for
        return False

    def _bind_elements(self, target: ast.expr, source: ast.expr) -> None:
        element = _element(self.type(source), of_iteration=True)
        if isinstance(target, ast.Tuple):
            self._bind_parts(target.elts, element)
        elif isinstance(target, ast.Name):
            self._types[target.id] = element
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._fresh.discard(node.id)
                self._stands_for.pop(node.id, None)
                if self._is_held(source) and isinstance(self._types.get(node.id), Container):
                    self._stands_for[node.id] = source

    def _bind_parts(self, targets: list[ast.expr], whole: Type) -> None:
        args = whole.args if isinstance(whole, Container) and whole.name == "tuple" else ()
        for number, target in enumerate(targets):
            if isinstance(target, ast.Name):
                self._types[target.id] = args[number] if number < len(args) else None
                self._fresh.discard(target.id)
                self._stands_for.pop(target.id, None)

    def _bind_case(self, pattern: ast.pattern, subject: ast.expr) -> None:
        if isinstance(pattern, ast.MatchClass) and isinstance(pattern.cls, ast.Name) and isinstance(subject, ast.Name):
            found = self._source.find(self._module, pattern.cls.id)
            if isinstance(found, ClassInfo):
                self._types[subject.id] = found


def _element(found: Type, *, of_iteration: bool = False) -> Type:
    if not isinstance(found, Container) or not found.args:
        return None
    if found.name in _MAPPINGS:
        return found.args[0 if of_iteration else min(1, len(found.args) - 1)]
    return found.args[0]


def _expressions(node: ast.stmt) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr


def _is_protocol(info: ClassInfo) -> bool:
    return any("Protocol" in ast.unparse(base) for base in info.node.bases)


def _class(node: ast.ClassDef, module: str) -> ClassInfo:
    info = ClassInfo(node.name, module, node)
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            info.methods[statement.name] = statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            info.fields[statement.target.id] = (statement.annotation, statement.value, None)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name) and target.id != "__slots__":
                    info.fields[target.id] = (None, statement.value, None)
    for method in info.methods.values():
        for name, annotation, value in _self_assignments(method):
            known = info.fields.get(name)
            if known is None or (known[0] is None and (annotation is not None or method.name == "__init__")):
                info.fields[name] = (annotation, value, method if isinstance(method, ast.FunctionDef) else None)
    return info


def _self_assignments(
    method: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    for node in ast.walk(method):
        pairs: list[tuple[ast.expr, ast.expr | None, ast.expr | None]] = []
        if isinstance(node, ast.AnnAssign):
            pairs = [(node.target, node.annotation, node.value)]
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple):
                    values = node.value.elts if isinstance(node.value, ast.Tuple) else [None] * len(target.elts)
                    pairs += [(t, None, v) for t, v in zip(target.elts, values, strict=False)]
                else:
                    pairs.append((target, None, node.value))
        elif isinstance(node, ast.AugAssign):
            pairs = [(node.target, None, None)]
        for target, annotation, value in pairs:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                yield target.attr, annotation, value
