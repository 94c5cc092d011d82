"""The weights of one layer, gathered from the tensors of a checkpoint as its layout says.

Parts that stand in the file as they are, and rows of stacked ones, stay in the memory of the file; the others
cost one copy of themselves until they are packed.
"""

import numpy as np

from mojolearn.models.layouts import Folded, Listed, PerHead, Shared, Stacked, Transposed

NORMS = ("input_layernorm", "post_attention_layernorm", "attention_output_norm", "mlp_output_norm")


def layer_weights(take, layout, prefix, shapes, head_dim, *, plain_norms=False):
    """Take the tensors of a layer out of a checkpoint.

    Parameters
    ----------
    take : callable
        ``take(name, shape)`` of a checkpoint, or its ``pass_over`` to check them without reading.
    layout : Layout
        How they are named and stored.
    prefix : str
        What all names begin with.
    shapes : dict of str to tuple of int
        The weights wanted, as `BlockOptions.weight_shapes` lists them.
    head_dim : int
        Width of a head.
    plain_norms : bool, default False
        The norms have no tensors; their gains are ones.

    Returns
    -------
    weights : dict of str to ndarray
        Under the names of ``TransformerBlock``, in the dtype of the file.
    origins : dict of str to str
        The name in the checkpoint of each.

    Raises
    ------
    ValueError
        A tensor is missing, or of another shape or an unusable type.
    """
    weights, origins = {}, {}
    if plain_norms:
        gains = [name for name in shapes if name.partition(".")[0] in NORMS]
        weights |= {name: np.ones(shapes[name], np.float32) for name in gains}
        origins |= dict.fromkeys(gains, "the norms, which have no tensors")
    for module, held in layout.modules.items():
        for leaf in ("weight", "bias"):
            names = [f"{part}.{leaf}" for part in _parts(held)]
            names = [name for name in names if name in shapes and name not in weights]
            if not names:
                continue
            stored = f"{prefix}{module}.{leaf}"
            read = READERS[type(held)]
            arrays = read(take, stored, [shapes[name] for name in names], head_dim)
            weights.update(zip(names, arrays, strict=True))
            origins.update(dict.fromkeys(names, stored.replace("{}", "*")))
    return weights, origins


def _parts(held):
    if isinstance(held, str):
        return (held,)
    return (held.part,) if isinstance(held, (Folded, Shared, Listed)) else held.parts


def _alone(take, name, shapes, head_dim):
    return [take(name, shapes[0])]


def _stacked(take, name, shapes, head_dim):
    rows = [shape[0] for shape in shapes]
    return np.split(take(name, (sum(rows), *shapes[0][1:])), np.cumsum(rows[:-1]))


def _transposed(take, name, shapes, head_dim):
    rows = [shape[0] for shape in shapes]
    whole = take(name, (*shapes[0][:0:-1], sum(rows)))
    return np.split(whole.T, np.cumsum(rows[:-1]))


def _per_head(take, name, shapes, head_dim):
    rows, rest = shapes[0][0], shapes[0][1:]
    whole = take(name, (len(shapes) * rows, *rest)).reshape(rows // head_dim, len(shapes), head_dim, *rest)
    return [whole[:, i].reshape(shape) for i, shape in enumerate(shapes)]


def _folded(take, name, shapes, head_dim):
    return [take(name, (shapes[0][0] // head_dim, head_dim)).reshape(-1)]


def _shared(take, name, shapes, head_dim):
    return [np.tile(take(name, (head_dim,)), shapes[0][0] // head_dim)]


def _listed(take, name, shapes, head_dim):
    heads = range(shapes[0][0] // head_dim)
    return [np.concatenate([take(name.format(head), (head_dim,)) for head in heads])]


READERS = {
    str: _alone,
    Stacked: _stacked,
    Transposed: _transposed,
    PerHead: _per_head,
    Folded: _folded,
    Shared: _shared,
    Listed: _listed,
}
