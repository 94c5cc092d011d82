"""The weights of a block: which names, shapes and dtypes are admitted, and how matrices are stored narrow.

Names and the layout ``(out, in)`` are those of Hugging Face and torch; names come without prefixes, so that
``model.layers.0.mlp.up_proj.weight`` of a checkpoint is ``up_proj.weight`` here. The matrices of a block
(``*_proj.weight``) are stored in its ``weight_format``; the vectors (norms and biases) are small and always
float32. A bfloat16 value is kept as its 16 bits in a uint16: they are the upper half of the float32 of the
same value.
"""

from collections.abc import Mapping

import numpy as np

from mojolearn.buffers import FLOAT32, admit_array, dtype_in_words, first_nonfinite, first_where
from mojolearn.scalars import admit_choice, did_you_mean, kind
from mojolearn.tensors import TENSORS

OWNER = "TransformerBlock"
NAMES = tuple(dict.fromkeys(name for name, _, _ in TENSORS))
SIZES = (("input_layernorm.weight", 1, "(d_model,)"), ("up_proj.weight", 2, "(intermediate_size, d_model)"))
STORAGE = {"float32": FLOAT32, "bfloat16": np.dtype(np.uint16), "float16": np.dtype(np.float16)}


def widen(array):
    """Turn stored weights into float32, exactly, subnormal values included.

    Parameters
    ----------
    array : ndarray of float32, float16, bfloat16 or uint16
        A uint16 holds the bits of a bfloat16.

    Returns
    -------
    ndarray of float32
        Of the same shape; `array` itself if it is float32 already.

    Raises
    ------
    TypeError
        For any other dtype.

    Examples
    --------
    >>> widen(np.array([0x3F80, 0xC000], np.uint16))
    array([ 1., -2.], dtype=float32)
    """
    if array.dtype == FLOAT32:
        return array
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if _is_bfloat16(array.dtype):
        array = array.view(np.uint16)
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    raise TypeError(
        f"widen: weights are float32, float16, bfloat16 or its bits as uint16, not "
        f"{dtype_in_words(array.dtype)}"
    )


def narrow(array, weight_format):
    """Round float32 values to a storage format: to nearest, ties to even.

    Parameters
    ----------
    array : ndarray of float32
        The values. Those too large for the format become infinite.
    weight_format : {"float32", "bfloat16", "float16"}
        The format.

    Returns
    -------
    ndarray of float32, uint16 (bits of bfloat16) or float16
        Of the same shape; `array` itself for "float32".

    Raises
    ------
    TypeError, ValueError
        If `array` is not float32, or the format is unknown.

    Examples
    --------
    >>> widen(narrow(np.array([1.0, 3.14159274], np.float32), "bfloat16"))
    array([1.      , 3.140625], dtype=float32)
    """
    admit_choice(weight_format, "weight_format", "narrow", tuple(STORAGE))
    if array.dtype != FLOAT32:
        raise TypeError(f"narrow: the array must be float32, not {dtype_in_words(array.dtype)}")
    if weight_format == "float32":
        return array
    if weight_format == "float16":
        with np.errstate(over="ignore", under="ignore"):
            return array.astype(np.float16)
    bits = np.ascontiguousarray(array).view(np.uint32)
    upper = np.where(
        bits & 0x7FFFFFFF > 0x7F800000,
        bits >> 16 | 0x40,  # NaN stays NaN (rounding its bits could make an infinity of it)
        (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16,
    )
    return upper.astype(np.uint16).reshape(array.shape)


def infer_sizes(weights):
    """Read the two sizes that no option gives off the weights.

    Parameters
    ----------
    weights : dict of str to array_like
        Weights of a block.

    Returns
    -------
    d_model, intermediate_size : int
        The length of ``input_layernorm.weight`` (in a block with norms at the outputs only: the number of columns of
        ``up_proj.weight``), and the number of rows of ``up_proj.weight``.

    Raises
    ------
    TypeError
        If `weights` is no mapping, or one of the two tensors no array.
    ValueError
        If one of them is missing or has the wrong rank.

    Examples
    --------
    >>> infer_sizes({"input_layernorm.weight": np.ones(4), "up_proj.weight": np.ones((16, 4))})
    (4, 16)
    """
    _check_mapping(weights)
    _check_prefixes(weights)
    only_outputs = "attention_output_norm.weight" in weights and SIZES[0][0] not in weights
    shapes = {}
    for name, rank, form in SIZES[1:] if only_outputs else SIZES:
        if name not in weights:
            unknown = [key for key in weights if key not in NAMES]
            raise ValueError(f"{OWNER}: {'; '.join(_complaints([name], unknown, NAMES))}")
        shape = admit_array(weights[name], name, OWNER).shape
        if len(shape) != rank or 0 in shape:
            raise ValueError(f"{OWNER}: {name} has shape {shape}; wanted is {form}")
        shapes[name] = shape
    rows, columns = shapes["up_proj.weight"]
    return shapes.get("input_layernorm.weight", (columns,))[0], rows


def admit_weights(weights, options):
    """Check the weights of a block against its options, once, and bring them into storage form.

    Parameters
    ----------
    weights : dict of str to array_like
        All tensors that ``options.weight_shapes()`` names and no others: float32, or in the narrow
        ``weight_format`` of the options. A float32 matrix is admitted for a narrow format when the format can
        hold every value exactly.
    options : BlockOptions
        The checked options.

    Returns
    -------
    dict of str to ndarray
        In the order of ``options.weight_shapes()``. Matrices are C-contiguous float32, uint16 (bits of
        bfloat16) or float16 and may share memory with the caller's; vectors are float32 copies.

    Raises
    ------
    TypeError
        If `weights` is no mapping, or a tensor is no array or has the wrong dtype.
    ValueError
        For missing and unknown names, wrong shapes, NaN or infinities, and values that a narrow format cannot
        hold.
    """
    _check_mapping(weights)
    _check_prefixes(weights)
    shapes = options.weight_shapes()
    _check_names(weights, shapes, options)
    admitted = {}
    for name, shape in shapes.items():
        array = admit_array(weights[name], name, OWNER)
        if array.shape != shape:
            raise ValueError(
                f"{OWNER}: {name} has shape {array.shape}; wanted is {options.explain_shape(name)}"
            )
        array = _native(array, name, options.weight_format)
        _check_finite(array, name)
        if len(shape) == 1:
            admitted[name] = np.array(widen(array), order="C", copy=True)
        else:
            admitted[name] = np.require(_stored(array, name, options.weight_format), requirements=["C", "A"])
    return admitted


def _is_bfloat16(dtype):
    return dtype.name == "bfloat16"  # NumPy has none of its own; the package ml_dtypes adds it


def _check_mapping(weights):
    if not isinstance(weights, Mapping):
        raise TypeError(f"{OWNER}: weights must be a dict from names to arrays, not {kind(weights)}")


def _without_prefix(name):
    return ".".join(str(name).split(".")[-2:])


def _check_prefixes(weights):
    """Answer names of whole models, such as "self_attn.q_proj.weight", in one sentence instead of one for each."""
    for name in weights:
        short = _without_prefix(name)
        if name not in NAMES and short in NAMES:
            raise ValueError(
                f"{OWNER}: the weight {name!r} must come without its prefix, as {short!r}, and so must all others"
            )


def _check_names(weights, shapes, options):
    """Report every missing, unknown and switched-off name in one message."""
    missing = [name for name in shapes if name not in weights]
    unwanted = {name: options.why_not(name) for name in weights if name not in shapes}
    unknown = [name for name, reason in unwanted.items() if reason is None]
    problems = _complaints(missing, unknown, shapes)
    problems += [f"{name!r} is given, but does not go with {why}" for name, why in unwanted.items() if why]
    if problems:
        raise ValueError(f"{OWNER}: {'; '.join(problems)}")


def _complaints(missing, unknown, known):
    """Put missing and unknown names into words."""
    complaints = [f"the weights lack {name!r}" for name in missing]
    complaints += [
        f"the weight {name!r} is unknown{did_you_mean(_without_prefix(name), missing or known)}"
        for name in unknown
    ]
    return complaints


def _native(array, name, weight_format):
    """Refuse dtypes that neither are float32 nor belong to the format; bfloat16 becomes its bits."""
    given = dtype_in_words(array.dtype)
    if _is_bfloat16(array.dtype) and array.dtype.isnative:
        array = array.view(np.uint16)
    elif array.dtype == np.uint16:
        given = "uint16 (taken for the bits of bfloat16)"
    if array.dtype in (FLOAT32, STORAGE[weight_format]):
        return array
    for other, storage in STORAGE.items():
        if array.dtype == storage:
            raise TypeError(
                f"{OWNER}: {name} is {given}, which does not go with weight_format={weight_format!r}; "
                f"give weight_format={other!r}, or float32 weights"
            )
    wanted = "float32" if weight_format == "float32" else f"float32 or {weight_format}"
    cast = "uint16" if array.dtype.newbyteorder("=") == np.uint16 else "float32"
    raise TypeError(
        f"{OWNER}: {name} must be {wanted}, not {given}; cast it with weights[{name!r}].astype(np.{cast})"
    )


def _check_finite(array, name):
    if array.dtype == np.uint16:
        at = first_where(array, lambda bits: (bits & 0x7F80) == 0x7F80)
    else:
        at = first_nonfinite(array)
    if at is not None:
        raise ValueError(f"{OWNER}: {_entry(array, name, at)} is not a finite number")


def _stored(array, name, weight_format):
    """Store a finite float32 matrix in the format; refuse one that would be rounded."""
    if array.dtype == STORAGE[weight_format]:
        return array
    narrowed = narrow(array, weight_format)
    at = first_where(array, lambda piece: widen(narrow(piece, weight_format)) != piece)
    if at is not None:
        raise ValueError(
            f"{OWNER}: {_entry(array, name, at)} is no {weight_format} number, and weight_format="
            f"{weight_format!r} never rounds; round the tensor with "
            f"mojolearn.weights.narrow(weights[{name!r}], {weight_format!r}), or keep weight_format='float32'"
        )
    return narrowed


def _entry(array, name, at):
    """Write the value at flat index `at` for a sentence: "q_proj.weight[3, 17] = 0.1"."""
    index = tuple(int(i) for i in np.unravel_index(at, array.shape))
    return f"{name}[{', '.join(map(str, index))}] = {widen(array[index])}"
