"""Compiles one function for one set of types with numba, into an object file.

Imported only if the cache lacks the function. The function is wrapped in an adapter with one argument, a block of
machine words: pointer and shape of each array, and the integers, in order. The adapter rebuilds arrays and NamedTuples,
calls the function, and writes its results to the front of the block. The final LLVM module of the adapter contains all
functions that it calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir
import numba as typed_numba
import numpy as np
from numba.core import cgutils as typed_cgutils
from numba.core import sigutils as typed_sigutils
from numba.core.codegen import JITCodeLibrary as TypedJITCodeLibrary
from numba.core.codegen import JITCPUCodegen as TypedJITCPUCodegen
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from raycdc.core import compiled

#: Only parts of numba have type hints.
numba: Any = typed_numba
types: Any = typed_numba.types
cgutils: Any = typed_cgutils
sigutils: Any = typed_sigutils
JITCodeLibrary: Any = TypedJITCodeLibrary
JITCPUCodegen: Any = TypedJITCPUCodegen

#: Keeps dispatchers alive, because numba's types refer to them weakly.
_dispatchers: list[Any] = []
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def dispatcher_type(function: Callable[..., Any], *, inline: bool = False) -> Any:
    """Return the numba type of a global that holds a compiled function."""
    dispatcher = numba.njit(**_OPTIONS, forceinline=inline)(function)
    _dispatchers.append(dispatcher)
    return types.Dispatcher(dispatcher)


def external_type(name: str, signature: str) -> Any:
    """Return the numba type of a global that holds a function of the C library."""
    args, result = sigutils.normalize_signature(signature)
    return types.ExternalFunction(name, result(*args))


@intrinsic
def _address(_context: Any, _number: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], llvmlite.ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@intrinsic
def _load(_context: Any, data: Any, at: Any, bits: Any) -> Any:  # noqa: ARG001  numba passes all types
    if not isinstance(bits, types.IntegerLiteral):
        raise numba.errors.RequireLiteralValue("load needs the number of bits as a literal")
    width = bits.literal_value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = llvmlite.ir.IntType(width)
        value = builder.load(builder.bitcast(_pointer(context, builder, signature, args, 0), word.as_pointer()))
        value.align = 1
        return value if width == 64 else builder.zext(value, llvmlite.ir.IntType(64))

    # The literal is part of the signature, because all calls with the same signature share one implementation.
    return types.int64(data, types.int64, bits), generate


@intrinsic
def _copy(_context: Any, source: Any, at: Any, target: Any, to: Any, count: Any) -> Any:  # noqa: ARG001  as `_load`
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = _pointer(context, builder, signature, args, 0)
        end = _pointer(context, builder, signature, args, 2)
        cgutils.raw_memcpy(builder, end, start, args[4], 1)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64, types.int64), generate


def _pointer(context: Any, builder: Any, signature: Any, args: Any, first: int) -> Any:
    """Return a pointer to byte ``args[first + 1]`` of the array ``args[first]``."""
    array = context.make_array(signature.args[first])(context, builder, args[first])
    start = builder.bitcast(array.data, llvmlite.ir.IntType(8).as_pointer())
    return builder.gep(start, [args[first + 1]])


def intrinsic_type(name: str) -> Any:
    """Return the numba type of a global that holds `compiled.load` or `compiled.copy`."""
    context = cpu_target.typing_context
    context.refresh()
    return context.resolve_value_type({"load": _load, "copy": _copy}[name])


class _Source:
    """The builder of the adapter's source text."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"carray": numba.carray, "address": _address}
        self.at = 0

    def expression(self, value: Any) -> str:
        """Return the text that rebuilds `value` from the block."""
        if isinstance(value, np.ndarray):
            first = self.at
            self.at += 1 + value.ndim
            shape = ", ".join(f"block[{first + 1 + i}]" for i in range(value.ndim))
            self.names[f"t{first}"] = numba.from_dtype(value.dtype)
            return f"carray(address(block[{first}]), ({shape},), t{first})"
        if isinstance(value, tuple):
            name = f"n{self.at}"
            self.names[name] = type(value)
            return f"{name}({', '.join(self.expression(item) for item in value)})"
        self.at += 1
        return f"block[{self.at - 1}]"

    def adapter(self, function: Any, args: tuple[Any, ...], results: int) -> Callable[..., Any]:
        """Return the adapter as a Python function."""
        self.at = 0
        self.names["function"] = function
        call = f"function({', '.join(self.expression(value) for value in args)})"
        if results == 0:
            body = [call]
        elif results == 1:
            body = [f"block[0] = {call}"]
        else:
            body = [f"result = {call}", *(f"block[{i}] = result[{i}]" for i in range(results))]
        text = "def adapter(block):\n" + "".join(f"    {line}\n" for line in body)
        exec(compile(text, "<adapter>", "exec"), self.names)  # noqa: S102  text of our own making
        adapter: Callable[..., Any] = self.names["adapter"]
        return adapter


def build(function: compiled.CompiledFunction, args: tuple[Any, ...], symbol: str) -> bytes:
    """Return a header line and object code with the entry `symbol`.

    The header is JSON: the number of results, and the symbols of numba's runtime for which the loader needs stubs.
    """
    dispatcher = function._numba_type_.dispatcher
    with _one_optimization():
        results = _results(dispatcher, args)
        adapter = _Source().adapter(dispatcher, args, results)
        callback = numba.cfunc(types.void(types.CPointer(types.int64)), nopython=True, error_model="numpy")(adapter)
    text = callback.inspect_llvm().replace(callback.native_name, symbol)
    module = llvm.parse_assembly(text)
    stubs = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    stubs = [name for name in stubs if name.startswith(("numba_", "NRT_"))]
    code: bytes = compiled.target_machine().emit_object(module)
    return json.dumps({"results": results, "stubs": stubs}).encode() + b"\n" + code


@contextmanager
def _one_optimization() -> Iterator[None]:
    """Let LLVM optimize and compile only the adapter, which contains every function that it calls.

    By default, numba also optimizes each helper separately, and again for each helper that calls it. That is several
    times the work.
    """
    optimize = JITCodeLibrary._optimize_final_module
    finish = JITCodeLibrary._finalize_final_module

    def optimize_adapter(library: Any) -> None:
        if "adapter" in library.name:
            optimize(library)

    def finish_without_code(library: Any) -> None:
        library._finalize_dynamic_globals()
        library._finalized = True

    def no_environment(_codegen: Any, _name: str, _environment: Any) -> None:
        """Do nothing, because a function's environment has no place where no machine code is made."""

    set_environment = JITCPUCodegen.set_env
    JITCodeLibrary._optimize_final_module = optimize_adapter
    JITCodeLibrary._finalize_final_module = finish_without_code
    JITCPUCodegen.set_env = no_environment
    try:
        yield
    finally:
        JITCodeLibrary._optimize_final_module = optimize
        JITCodeLibrary._finalize_final_module = finish
        JITCPUCodegen.set_env = set_environment


def _results(dispatcher: Any, args: tuple[Any, ...]) -> int:
    """Infer the types of the function, and return the number of its results."""
    arguments = tuple(types.int64 if isinstance(a, int | np.integer) else _array_type(a) for a in args)
    dispatcher.compile(arguments)
    result = dispatcher.overloads[arguments].signature.return_type
    if result == types.none:
        return 0
    return len(result) if isinstance(result, types.BaseTuple) else 1


def _array_type(value: Any) -> Any:
    if isinstance(value, tuple):
        return types.NamedTuple([_array_type(item) for item in value], type(value))
    return types.Array(numba.from_dtype(value.dtype), value.ndim, "C")
