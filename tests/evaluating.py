"""Expressions run over whole arrays: one element at a time, and by vectors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctrlgrad.engines.native import library, objects, target
from ctrlgrad.engines.native.expressions import emit_expression
from ctrlgrad.engines.native.text import Writer, memory_type_of, type_of
from ctrlgrad.plan.expression import Expression, Instruction

BOOL = np.dtype(bool)


def vector_width(dtype):
    """The elements of one of the machine's vector registers."""
    return target.host().vector_bytes // np.dtype(dtype).itemsize


@dataclass(frozen=True)
class Program:
    """An expression of arrays: `load` k is the element of input k, `scalar` k the only element of input k."""

    expression: Expression
    width: int

    @property
    def outputs(self) -> list[np.dtype]:
        return [self.expression.instructions[o].dtype for o in self.expression.outputs]


def compiled(programs: Sequence[Program]):
    """Functions of lists of arrays that give lists of arrays, all of one module."""
    writer, functions = Writer(), []
    for number, program in enumerate(programs):
        functions.append(_text(writer, program, f"f{number}"))
    names = tuple(f"f{number}" for number in range(len(programs)))
    code = objects.ObjectCode(names, target.compiled(writer.module(*functions)))
    addresses = objects.loaded(code, library.addresses(library.called(writer.declarations))).kept()
    return [_runner(program, addresses[name]) for program, name in zip(programs, names, strict=True)]


def evaluate(expression, inputs, width):
    """The outputs of one expression."""
    return compiled([Program(expression, width)])[0](inputs)


def _text(shared, program, name):
    """void f(ptr *inputs, ptr *outputs, i64 count) for a count that the width divides."""
    writer, width = Writer(shared), program.width
    head, body, end = (writer.new_label(hint) for hint in ("head", "body", "end"))
    writer.branch(head)
    writer.label(head)
    place = writer.phi("i64")
    place.add("0", "entry")
    inside = writer.op(f"icmp slt i64 {place.name}, %count")
    writer.branch_if(inside, body, end)
    writer.label(body)

    def pointer(table, number, dtype, at):
        base = writer.op(f"load ptr, ptr {writer.op(f'getelementptr ptr, ptr {table}, i64 {number}')}")
        return writer.op(f"getelementptr {memory_type_of(dtype)}, ptr {base}, i64 {at}")

    def leaf(instruction: Instruction, given: list[str]):
        dtype, is_vector = instruction.dtype, instruction.op == "load" and width > 1
        lanes = width if is_vector else 1
        at = place.name if instruction.op == "load" else "0"
        kind = memory_type_of(dtype, lanes)
        value = writer.op(f"load {kind}, ptr {pointer('%inputs', instruction.value, dtype, at)}, align 1")
        if dtype == BOOL:
            value = writer.op(f"icmp ne {kind} {value}, zeroinitializer")
        return value, is_vector

    for number, value in enumerate(emit_expression(writer, program.expression, leaf, width)):
        dtype = program.outputs[number]
        kind = memory_type_of(dtype, width)
        if dtype == BOOL:
            value = writer.op(f"zext {type_of(dtype, width)} {value} to {kind}")
        writer.line(f"store {kind} {value}, ptr {pointer('%outputs', number, dtype, place.name)}, align 1")
    place.add(writer.op(f"add i64 {place.name}, {width}"), writer.block)
    writer.branch(head)
    writer.label(end)
    writer.line("ret void")
    return writer.function(f"void @{name}(ptr %inputs, ptr %outputs, i64 %count)")


def _runner(program, address):
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)

    def run(inputs):
        count = inputs[0].size
        padded = -(-count // program.width) * program.width
        given = [np.resize(np.ascontiguousarray(x), padded) for x in inputs]
        results = [np.empty(padded, dtype) for dtype in program.outputs]
        tables = [np.array([x.ctypes.data for x in arrays], np.uintp) for arrays in (given, results)]
        function(tables[0].ctypes.data, tables[1].ctypes.data, padded)
        return [result[:count] for result in results]

    return run
