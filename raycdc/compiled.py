"""Compiled loops: Python functions over arrays, compiled by numba once per machine, then loaded without numba.

Files called ``*_loops.py`` hold such functions. `helper` marks one that only other compiled functions call; `njit`
one that Python calls. At its first call with some types, an `njit` function is looked up in the cache; on a hit its
machine code is loaded through llvmlite in milliseconds (importing numba and starting its dispatcher takes over a
second, which commands like ``inspect`` cannot afford). On a miss, `raycdc.compiled_build` imports numba, compiles, and
stores the code. The GIL is released while a compiled function runs.

What such a function may take: C-contiguous arrays, integers, booleans, floats, and NamedTuples of arrays. It returns
nothing, an integer or boolean, or a tuple of them. It must not raise and must not allocate.

The cache is ``$RAYCDC_COMPILED_DIR`` or the user's cache directory; a read-only installation works. Its key holds the
sources of all ``*_loops.py`` and of this machinery, the versions of numba and llvmlite, and the CPU.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

_PACKAGE = Path(__file__).resolve().parent

Function = TypeVar("Function", bound=Callable[..., Any])

_NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_lock = threading.RLock()


def njit(function: Function) -> Function:
    """A compiled function that Python may call."""
    return cast("Function", CompiledFunction(function))


def helper(function: Function) -> Function:
    """A function that is compiled into its callers; calling it from Python runs it as plain Python."""
    return cast("Function", _Helper(function))


def external(name: str, signature: str) -> Any:
    """A function of the C library, ``external("strtod", "float64(voidptr, int64)")``, for use in compiled functions."""
    return _External(name, signature)


@functools.cache
def cache_directory() -> Path:
    """Where this version's machine code for this CPU is kept."""
    import llvmlite.binding as llvm

    digest = hashlib.sha256()
    sources = [*sorted(_PACKAGE.rglob("*_loops.py")), _PACKAGE / "compiled.py", _PACKAGE / "compiled_build.py"]
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
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


class _Helper:
    """Shows numba a dispatcher, and everyone else the plain function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from raycdc.compiled_build import dispatcher_type

        return dispatcher_type(self._function)


class _External:
    """Shows numba a function of the C library."""

    def __init__(self, name: str, signature: str) -> None:
        self._name = name
        self._signature = signature

    @functools.cached_property
    def _numba_type_(self) -> Any:
        from raycdc.compiled_build import external_type

        return external_type(self._name, self._signature)


class CompiledFunction(_Helper):
    """One function in all the argument types it was called with."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._variants: dict[tuple[Any, ...], tuple[Any, int]] = {}

    def __call__(self, *args: Any) -> Any:
        """Run the machine code for these types, making or loading it first if need be."""
        block: list[int] = []
        tags = tuple([_pack(value, block) for value in args])
        variant = self._variants.get(tags)
        if variant is None:
            variant = self._load(tags, args)
        native, results = variant
        memory = (ctypes.c_int64 * max(len(block), 8))(*block)
        native(ctypes.addressof(memory))
        if results == 0:
            return None
        return memory[0] if results == 1 else tuple(memory[:results])

    def prepare(self, *args: Any) -> None:
        """Make the machine code for the types of `args` available, without running it."""
        tags = tuple([_pack(value, []) for value in args])
        if tags not in self._variants:
            self._load(tags, args)

    def _load(self, tags: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, int]:
        with _lock:
            text = json.dumps(tags)
            key = hashlib.sha256(text.encode()).hexdigest()[:12]
            path = cache_directory() / f"{self._function.__module__}.{self._function.__name__}.{key}"
            symbol = "raycdc_" + hashlib.sha256(path.name.encode()).hexdigest()[:24]
            try:
                stored = path.read_bytes()
            except FileNotFoundError:
                from raycdc.compiled_build import build

                stored = build(self, args, symbol)
                _store(path, stored)
            head, _, code = stored.partition(b"\n")
            description = json.loads(head)
            variant = (_native(symbol, code, description["stubs"]), int(description["results"]))
            self._variants[tags] = variant
            return variant


def _pack(value: Any, block: list[int]) -> Any:
    """Append the value's machine words to `block`; returns its type as JSON-able tags."""
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


def _store(path: Path, stored: bytes) -> None:
    """Write atomically: several processes may compile the same function at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_bytes(stored)
    temporary.replace(path)


@functools.cache
def _engine() -> Any:
    """One LLVM execution engine for everything; it lives as long as the process."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())


def target_machine() -> Any:
    """Code generation for this CPU, as just-in-time code."""
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
