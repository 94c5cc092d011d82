"""Vector registers as Numba types.

A value of type ``f32v`` is one vector register of ``LANES`` float32 numbers; kernels use it like an ordinary
number: ``a * b + c`` rounds twice, ``fma(a, b, c)`` once, always in the order written. ``i32v`` and ``mask``
are the integers and the comparison results that go with it. Memory is reached by ``load``, ``store`` and
``broadcast`` on flat arrays: unlike ``a[i]`` they never test for a negative index, which in an inner loop
would halve the speed.

``LANES`` is 16 where the processor has AVX-512 and 8 elsewhere (LLVM splits 8 lanes into two registers on
SSE and Arm). No result depends on it: kernels vectorise over independent outputs, never inside a sum.

Under ``NUMBA_DISABLE_JIT=1`` a register is a NumPy array of ``LANES`` values and the functions of
``simd_numpy`` stand in for the intrinsics: they are the specification of each.
"""

import operator

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.datamodel import models, register_default
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import signature
from numba.extending import intrinsic, type_callable
from numba.np.arrayobj import make_array

from mojolearn._jit import HAS_F16C, LANES

FLOAT = ir.FloatType()
DOUBLE = ir.DoubleType()
INT = ir.IntType(32)
BOOL = ir.IntType(1)


class RegisterType(types.Type):
    """``LANES`` values of one LLVM element type, held in a vector register."""

    def __init__(self, name, element):
        self.element = element
        super().__init__(name=f"{name}x{LANES}")


class FloatRegister(RegisterType):
    pass


class IntRegister(RegisterType):
    pass


class MaskRegister(RegisterType):
    pass


f32v = FloatRegister("f32", FLOAT)
i32v = IntRegister("i32", INT)
mask = MaskRegister("mask", BOOL)


@register_default(FloatRegister)
@register_default(IntRegister)
@register_default(MaskRegister)
class RegisterModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.VectorType(fe_type.element, LANES))


# --- helpers that write LLVM -------------------------------------------------------------------------------


def _vector(element):
    return ir.VectorType(element, LANES)


def _splat(builder, value):
    """One scalar in every lane."""
    vector = ir.Constant(_vector(value.type), ir.Undefined)
    vector = builder.insert_element(vector, value, ir.Constant(INT, 0))
    zeros = ir.Constant(ir.VectorType(INT, LANES), [0] * LANES)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), zeros)


def _call(builder, name, args):
    """Call the LLVM intrinsic ``name`` for the type of its arguments (llvmlite cannot mangle vector names)."""
    kind = args[0].type
    suffix = {FLOAT: "f32", DOUBLE: "f64"}.get(kind, f"v{LANES}f32")
    function_type = ir.FunctionType(kind, [kind] * len(args))
    function = cgutils.get_or_insert_function(builder.module, function_type, f"{name}.{suffix}")
    return builder.call(function, args)


def _address(context, builder, array_type, array, index, element, lanes):
    """Pointer to ``array[index]`` as ``lanes`` elements (1 = a scalar)."""
    data = make_array(array_type)(context, builder, array).data
    pointer = builder.gep(data, [index])
    kind = element if lanes == 1 else ir.VectorType(element, lanes)
    return builder.bitcast(pointer, kind.as_pointer())


def _is_flat(array_type, *dtypes):
    return (
        isinstance(array_type, types.Array)
        and array_type.ndim == 1
        and array_type.layout == "C"
        and array_type.dtype in dtypes
    )


# --- memory ------------------------------------------------------------------------------------------------


def _widen_bfloat16(builder, bits):
    """bfloat16 is the upper half of a float32: exact by construction."""
    wide = builder.zext(bits, _vector(INT))
    wide = builder.shl(wide, _splat(builder, ir.Constant(INT, 16)))
    return builder.bitcast(wide, _vector(FLOAT))


def _widen_float16(builder, bits):
    """float16 to float32, exactly, subnormals included."""
    if HAS_F16C:
        return builder.fpext(builder.bitcast(bits, _vector(ir.HalfType())), _vector(FLOAT))
    # Without hardware: exponent and mantissa moved into place are the value times 2**-112 (also for
    # subnormals, whose float32 image is subnormal too); one exact multiplication puts it right.
    wide = builder.zext(bits, _vector(INT))
    magnitude = builder.and_(wide, _splat(builder, ir.Constant(INT, 0x7FFF)))
    magnitude = builder.shl(magnitude, _splat(builder, ir.Constant(INT, 13)))
    value = builder.bitcast(magnitude, _vector(FLOAT))
    value = builder.fmul(value, _splat(builder, ir.Constant(FLOAT, 2.0**112)))
    sign = builder.and_(wide, _splat(builder, ir.Constant(INT, 0x8000)))
    sign = builder.shl(sign, _splat(builder, ir.Constant(INT, 16)))
    return builder.bitcast(builder.or_(builder.bitcast(value, _vector(INT)), sign), _vector(FLOAT))


@intrinsic
def load(typingctx, array, index):
    """``LANES`` values from ``array[index]`` on, as float32.

    The dtype of the array says how they are stored: float32, uint16 (bfloat16 bits) or int16 (float16 bits).
    Always ``align`` of one element: rows of a matrix are not aligned to whole registers.
    """
    if not _is_flat(array, types.float32, types.uint16, types.int16) or not isinstance(index, types.Integer):
        return None

    def codegen(context, builder, sig, args):
        if array.dtype == types.float32:
            return builder.load(_address(context, builder, array, *args, FLOAT, LANES), align=4)
        bits = builder.load(_address(context, builder, array, *args, ir.IntType(16), LANES), align=2)
        widen = _widen_bfloat16 if array.dtype == types.uint16 else _widen_float16
        return widen(builder, bits)

    return signature(f32v, array, types.intp), codegen


@intrinsic
def store(typingctx, array, index, value):
    """Write the lanes of ``value`` to ``array[index]`` and the places after it."""
    if not _is_flat(array, types.float32) or value is not f32v or not isinstance(index, types.Integer):
        return None

    def codegen(context, builder, sig, args):
        pointer = _address(context, builder, array, args[0], args[1], FLOAT, LANES)
        builder.store(args[2], pointer, align=4)
        return context.get_dummy_value()

    return signature(types.void, array, types.intp, f32v), codegen


@intrinsic
def broadcast(typingctx, array, index):
    """``array[index]`` in every lane."""
    if not _is_flat(array, types.float32) or not isinstance(index, types.Integer):
        return None

    def codegen(context, builder, sig, args):
        return _splat(builder, builder.load(_address(context, builder, array, *args, FLOAT, 1), align=4))

    return signature(f32v, array, types.intp), codegen


@intrinsic
def get(typingctx, array, index):
    """``array[index]`` of a float32 array, without the test for a negative index."""
    if not _is_flat(array, types.float32) or not isinstance(index, types.Integer):
        return None

    def codegen(context, builder, sig, args):
        return builder.load(_address(context, builder, array, *args, FLOAT, 1), align=4)

    return signature(types.float32, array, types.intp), codegen


@intrinsic
def put(typingctx, array, index, value):
    """``array[index] = value`` in a float32 array, without the test for a negative index."""
    if not _is_flat(array, types.float32) or value != types.float32 or not isinstance(index, types.Integer):
        return None

    def codegen(context, builder, sig, args):
        builder.store(args[2], _address(context, builder, array, args[0], args[1], FLOAT, 1), align=4)
        return context.get_dummy_value()

    return signature(types.void, array, types.intp, types.float32), codegen


@intrinsic
def prefetch(typingctx, array, index):
    """Ask for the cache line of ``array[index]``; needed later, nothing waits for it. Any index is harmless.

    It goes to the second-level cache: more lines can be on their way there than to the first (measured, a bfloat16
    product of one row is 5 to 10 % faster).
    """
    if not _is_flat(array, types.float32, types.uint16, types.int16) or not isinstance(index, types.Integer):
        return None

    def codegen(context, builder, sig, args):
        byte = ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(ir.VoidType(), [byte, INT, INT, INT])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        data = make_array(array)(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), byte)
        read, second_level, of_data = (ir.Constant(INT, n) for n in (0, 2, 1))
        builder.call(function, [pointer, read, second_level, of_data])
        return context.get_dummy_value()

    return signature(types.void, array, types.intp), codegen


@intrinsic
def splat(typingctx, value):
    """One float32 or int32 in every lane."""
    register = {types.float32: f32v, types.int32: i32v}.get(value)
    if register is None:
        return None

    def codegen(context, builder, sig, args):
        return _splat(builder, args[0])

    return signature(register, value), codegen


# --- arithmetic --------------------------------------------------------------------------------------------


def _intrinsic_of_floats(name, n_args, doc):
    """An LLVM function of one or three operands: registers, float32 or float64."""

    def codegen(context, builder, sig, args):
        return _call(builder, name, list(args))

    def typed(*args):
        if args[0] in (f32v, types.float32, types.float64) and all(a == args[0] for a in args):
            return signature(args[0], *args), codegen
        return None

    if n_args == 1:
        function = intrinsic(lambda typingctx, a: typed(a))
    else:
        function = intrinsic(lambda typingctx, a, b, c: typed(a, b, c))
    function.__doc__ = doc
    return function


# llvm.fma is one rounding by definition: an instruction where there is one, otherwise a (slow) library call.
fma = _intrinsic_of_floats("llvm.fma", 3, "``a * b + c`` with one rounding.")
sqrt = _intrinsic_of_floats("llvm.sqrt", 1, "Correctly rounded square root.")
floor = _intrinsic_of_floats("llvm.floor", 1, "Largest whole number not above.")
absolute = _intrinsic_of_floats("llvm.fabs", 1, "Magnitude: the sign bit cleared.")


def _operator(symbol, operand, result, instruction):
    """Give a Python operator its meaning on two registers."""

    @type_callable(symbol)
    def typer(context):
        def types_of(a, b):
            return result if a is operand and b is operand else None

        return types_of

    @lower_builtin(symbol, type(operand), type(operand))
    def lower(context, builder, sig, args):
        return instruction(builder, *args)


for _symbol, _name in [("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")]:
    _operator(getattr(operator, _symbol), f32v, f32v, getattr(ir.IRBuilder, _name))
for _symbol, _name in [("add", "add"), ("sub", "sub"), ("and_", "and_"),
                       ("lshift", "shl"), ("rshift", "ashr")]:  # fmt: skip
    _operator(getattr(operator, _symbol), i32v, i32v, getattr(ir.IRBuilder, _name))
for _symbol, _name in [("and_", "and_"), ("or_", "or_"), ("xor", "xor")]:
    _operator(getattr(operator, _symbol), mask, mask, getattr(ir.IRBuilder, _name))
for _symbol, _name in [("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "==")]:
    _operator(getattr(operator, _symbol), f32v, mask, lambda b, x, y, n=_name: b.fcmp_ordered(n, x, y))
    _operator(getattr(operator, _symbol), i32v, mask, lambda b, x, y, n=_name: b.icmp_signed(n, x, y))


@type_callable(operator.neg)
def _type_neg(context):
    return lambda a: f32v if a is f32v else None


@lower_builtin(operator.neg, FloatRegister)
def _lower_neg(context, builder, sig, args):
    return builder.fneg(args[0])


def _conversion(source, target, convert, doc):
    """A one-argument change of register type."""

    def codegen(context, builder, sig, args):
        return convert(builder, args[0], _vector(target.element))

    function = intrinsic(lambda typingctx, a: (signature(target, a), codegen) if a is source else None)
    function.__doc__ = doc
    return function


to_int = _conversion(f32v, i32v, ir.IRBuilder.fptosi, "Whole float32 numbers as int32.")
to_float = _conversion(i32v, f32v, ir.IRBuilder.sitofp, "int32 as float32, rounded to nearest.")
from_bits = _conversion(i32v, f32v, ir.IRBuilder.bitcast, "The float32 numbers of bit patterns.")


@intrinsic
def select(typingctx, condition, yes, no):
    """Lane by lane ``yes`` where ``condition`` holds, ``no`` elsewhere; nothing is computed with the loser."""
    if condition is not mask or yes is not no or not isinstance(yes, RegisterType):
        return None

    def codegen(context, builder, sig, args):
        return builder.select(*args)

    return signature(yes, mask, yes, no), codegen


if config.DISABLE_JIT:  # the same names in plain NumPy, for debuggers and coverage
    from mojolearn.kernels.simd_numpy import *  # noqa: F403
