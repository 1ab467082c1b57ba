"""Compiled loops: Python functions over arrays, compiled by numba once per machine, then loaded without numba.

Files called ``*_loops.py`` hold such functions. `helper` marks a function that only compiled functions call, and `njit`
a function that Python calls. At its first call with some types, an `njit` function is looked up in the cache; if it is
found there, its machine code is loaded through llvmlite in milliseconds. (To import numba and start its dispatcher
takes over a second, which is too long for commands like ``inspect``.) Otherwise `raycdc.core.compiled_build` imports
numba, compiles the function, and stores the code. The GIL is released while a compiled function runs.

Such a function takes C-contiguous arrays, integers, booleans, floats, and NamedTuples of arrays. It returns nothing, an
integer or boolean, or a tuple of them. It must not raise and must not allocate.

The cache is ``$RAYCDC_COMPILED_DIR`` or the user's cache directory; a read-only installation works. Only files that no
other user can have written are loaded (`raycdc.core.trusted_files`), because they are executed. The key of a cache
entry consists of the source of these modules, the versions of numba and llvmlite, the CPU, the source of the function's
file, and the sources of all ``*_loops.py`` that this file imports.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from raycdc.core.trusted_files import read_own, write_own

_PACKAGE = Path(__file__).resolve().parents[1]

Function = TypeVar("Function", bound=Callable[..., Any])

#: The number of NamedTuples whose machine words a function remembers. Each remembered tuple keeps its arrays in memory.
_TUPLES_REMEMBERED = 4
_LOOPS_IMPORT = re.compile(rb"^from (raycdc[\w.]*_loops) import", re.MULTILINE)
_NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_lock = threading.RLock()


def njit(function: Function) -> Function:
    """Return `function` compiled, callable from Python."""
    return cast("Function", CompiledFunction(function))


def helper(function: Function) -> Function:
    """Mark a function that is compiled into its callers. Called from Python, it runs as plain Python."""
    return cast("Function", _Helper(function))


def inlined(function: Function) -> Function:
    """Mark a `helper` whose code is copied into each caller, for innermost loops, where a call costs more than its
    work.

    A call passes each array as seven machine words, so a function that is called for each row or value should be
    inlined.
    """
    return cast("Function", _Helper(function, inline=True))


def external(name: str, signature: str) -> Any:
    """Return a function of the C library, ``external("strtod", "float64(voidptr, int64)")``, for use in compiled
    functions.
    """
    return _External(name, signature)


def load(data: Any, at: Any, bits: Any) -> Any:  # noqa: ARG001  only its type is of use
    """Return an unsigned little-endian number of 16, 32 or 64 `bits` (a literal) at ``data[at]`` as int64, in one load.

    For compiled functions only. The caller must check the bounds. Reading byte by byte would be slower: each index is
    checked for being negative, so LLVM cannot merge the loads.
    """
    raise TypeError("load works in compiled functions only")


def copy(source: Any, at: Any, target: Any, to: Any, count: Any) -> Any:  # noqa: ARG001  only its type is of use
    """Copy `count` bytes between byte arrays with the C library's memcpy; for compiled functions only."""
    raise TypeError("copy works in compiled functions only")


@functools.cache
def cache_directory() -> Path:
    """Return the folder of this version's machine code for this CPU."""
    import llvmlite.binding as llvm

    digest = hashlib.sha256()
    for name in ("compiled.py", "compiled_build.py"):
        digest.update((_PACKAGE / "core" / name).read_bytes())
    features = llvm.get_host_cpu_features().flatten()
    versions = [importlib.metadata.version(name) for name in ("numba", "llvmlite", "numpy")]
    digest.update("\0".join([*versions, llvm.get_host_cpu_name(), features]).encode())
    configured = os.environ.get("RAYCDC_COMPILED_DIR")
    if configured:
        root = Path(configured)
    else:
        caches = os.environ.get("XDG_CACHE_HOME")
        root = (Path(caches) if caches else Path("~/.cache").expanduser()) / "raycdc" / "compiled"
    return root / digest.hexdigest()[:20]


@functools.cache
def _sources_digest(module: str) -> str:
    """Return a digest of a module's source and of all ``*_loops`` modules that it imports, directly or indirectly."""
    texts: dict[str, bytes] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        if name not in texts:
            source = sys.modules[name].__file__
            texts[name] = Path(source).read_bytes() if source else b""
            pending += [found.decode() for found in _LOOPS_IMPORT.findall(texts[name]) if found.decode() in sys.modules]
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(name.encode() + b"\0" + texts[name])
    return digest.hexdigest()


class _Helper:
    """A function that only compiled functions call. numba sees it as a dispatcher, and all other code as the plain
    function.
    """

    def __init__(self, function: Callable[..., Any], *, inline: bool = False) -> None:
        self._function = function
        self._inline = inline
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from raycdc.core.compiled_build import dispatcher_type

        return dispatcher_type(self._function, inline=self._inline)


class _External:
    """A function of the C library, as numba sees it."""

    def __init__(self, name: str, signature: str) -> None:
        self._name = name
        self._signature = signature

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from raycdc.core.compiled_build import external_type

        return external_type(self._name, self._signature)


class _Intrinsic:
    """An instruction sequence of `raycdc.core.compiled_build`, as numba sees it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        return self.__wrapped__(*args)  # type: ignore[attr-defined]

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from raycdc.core.compiled_build import intrinsic_type

        return intrinsic_type(self.__name__)  # type: ignore[attr-defined]


def _intrinsic(function: Function) -> Function:
    return cast("Function", _Intrinsic(function))


load = _intrinsic(load)
copy = _intrinsic(copy)


class CompiledFunction(_Helper):
    """One function, compiled for each combination of argument types that it was called with."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._variants: dict[tuple[Any, ...], tuple[Any, int]] = {}
        self._packed: dict[int, tuple[Any, Any, list[int]]] = {}

    def __call__(self, *args: Any) -> Any:
        """Run the machine code for these types. It is loaded or compiled first if necessary."""
        block: list[int] = []
        tags = tuple([self._pack_tuple(v, block) if isinstance(v, tuple) else _pack(v, block) for v in args])
        variant = self._variants.get(tags)
        if variant is None:
            variant = self._load(tags, args)
        native, results = variant
        memory = (ctypes.c_int64 * max(len(block), 8))(*block)
        native(ctypes.addressof(memory))
        if results == 0:
            return None
        return memory[0] if results == 1 else tuple(memory[:results])

    def _pack_tuple(self, value: tuple[Any, ...], block: list[int]) -> Any:
        """Append the machine words of a NamedTuple to `block`, and return its tags.

        Words and tags are remembered, because the same tuple is passed again and again, and its arrays cannot move. The
        cache holds a few tuples, and refers to each tuple itself, so that no new object gets the same identity.
        """
        known = self._packed.get(id(value))
        if known is None:
            words: list[int] = []
            tags = _pack(value, words)
            if len(self._packed) >= _TUPLES_REMEMBERED:
                self._packed.clear()
            known = self._packed[id(value)] = (value, tags, words)
        block.extend(known[2])
        return known[1]

    def _load(self, tags: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, int]:
        with _lock:
            text = json.dumps(tags) + _sources_digest(self._function.__module__)
            key = hashlib.sha256(text.encode()).hexdigest()[:12]
            path = cache_directory() / f"{self._function.__module__}.{self._function.__name__}.{key}"
            symbol = "raycdc_" + hashlib.sha256(path.name.encode()).hexdigest()[:24]
            stored = read_own(path)
            if stored is None:
                from raycdc.core.compiled_build import build

                stored = build(self, args, symbol)
                write_own(path, stored)
            head, _, code = stored.partition(b"\n")
            description = json.loads(head)
            variant = (_native(symbol, code, description["stubs"]), int(description["results"]))
            self._variants[tags] = variant
            return variant


def _pack(value: Any, block: list[int]) -> Any:
    """Append the value's machine words to `block`. Returns its type as JSON-able tags."""
    if isinstance(value, np.ndarray):
        interface = value.__array_interface__
        if interface["strides"] is not None:
            raise TypeError("compiled functions take C-contiguous arrays only")
        shape = interface["shape"]
        block.append(interface["data"][0])
        block.extend(shape)
        return (interface["typestr"], len(shape))
    if isinstance(value, tuple):
        cls = type(value)
        return (cls.__module__, cls.__qualname__, *[_pack(item, block) for item in value])
    if isinstance(value, int | np.integer | np.bool_):
        block.append(int(value))
        return "i"
    raise TypeError(f"compiled functions do not take {type(value).__name__}")


@functools.cache
def _engine() -> Any:
    """Return one LLVM execution engine for the whole life of the process."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())


def target_machine() -> Any:
    """Return LLVM's code generator for this CPU, for just-in-time code."""
    import llvmlite.binding as llvm

    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="default",
        codemodel="jitdefault",
    )


def _native(symbol: str, code: bytes, stubs: list[str]) -> Any:
    """Load an object file and return its entry. `stubs` are symbols of numba's runtime that are never called."""
    import llvmlite.binding as llvm

    engine = _engine()
    for name in stubs:
        if not llvm.address_of_symbol(name):
            llvm.add_symbol(name, ctypes.cast(ctypes.pythonapi.Py_FatalError, ctypes.c_void_p).value)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return _NATIVE(engine.get_function_address(symbol))
