"""A state in a file: sizes, the used part of its buffers, and what block they belong to."""

from mojolearn._version import NUMERICS_VERSION
from mojolearn.allocation import allocate_buffers
from mojolearn.archive import admit_target, read_fields, write_fields
from mojolearn.block import TransformerBlock
from mojolearn.buffers import first_nonfinite
from mojolearn.claims import Claim
from mojolearn.scalars import LARGEST, kind

FORMAT = "mojolearn block state 1"
WHAT = "a saved state"
SAVE, LOAD = "TransformerState.save", "TransformerState.load"
GEOMETRY = ("n_kv_heads", "head_dim", "window")  # what a block decides of its states


def save_state(state, path, model):
    """Write a state into a file; see `TransformerState.save`."""
    target = admit_target(path, SAVE)
    admit_model(model, TransformerBlock, SAVE)
    if model is not None:
        check_geometry(state, model.options, f"{SAVE}: the state")
    with Claim([state], SAVE):
        fields = head(FORMAT, model) | state_fields(state, f"{SAVE}: ", SAVE)
        write_fields(target, fields, SAVE)


def load_state(make, path, model):
    """Read a state from a file; see `TransformerState.load`. ``make`` is the class."""
    admit_model(model, TransformerBlock, LOAD)
    fields = read_fields(path, LOAD, WHAT)
    match_head(fields, FORMAT, "the state of a block", model)
    state = read_state(fields, make)
    fields.finish()
    if model is not None:
        check_geometry(state, model.options, f"{fields.where}: the state")
    return state


def admit_model(model, wanted, method):
    """Check that what a state is said to belong to is of this class, or None."""
    if model is not None and not isinstance(model, wanted):
        raise TypeError(f"{method}: model must be a {wanted.__name__} or None, not {kind(model)}")


def check_geometry(state, options, where):
    """Refuse a state that is not of a block with these options."""
    for name in GEOMETRY:
        if getattr(state, name) != getattr(options, name):
            raise ValueError(
                f"{where} has {name}={getattr(state, name)}, but the model has {getattr(options, name)}"
            )


def head(form, model):
    """The fields that say what a file is, and which model it belongs to: none, where that is not said."""
    fingerprint = "" if model is None else model.fingerprint
    return {"format": form, "numerics": NUMERICS_VERSION, "model": fingerprint}


def match_head(fields, form, whose, model):
    """Refuse a file of another kind, another arithmetic, or another model than one that is given."""
    fields.match("format", form, whose)
    fields.match("numerics", NUMERICS_VERSION, "this version of mojolearn")
    if model is None:
        fields.text("model")
        return
    found = fields.match("model", model.fingerprint, "this model", "")
    if not found:
        raise ValueError(
            f"{fields.where}: the field model is empty, as the state was saved without its model, so it cannot be "
            "compared with one; load it with model=None"
        )


def state_fields(state, where, method, prefix=""):
    """The fields of one state: sizes, and keys and values of the slots in use; refused unless they are finite."""
    length = state._checked_length(method)
    state._bring_up_to_date()
    fields = {
        f"{prefix}{name}": getattr(state, name)
        for name in ("batch_size", "n_kv_heads", "head_dim", "window", "max_tokens")
    }
    fields[f"{prefix}cached_tokens"] = length
    for name, buffer, flat in (("keys", "k_cache", state._k), ("values", "v_cache", state._v)):
        array = slots(state, flat, length)
        at = first_nonfinite(array)
        if at is not None:
            raise ValueError(f"{where}{buffer} holds {array.flat[at]}, which is not finite")
        fields[f"{prefix}{name}"] = array
    return fields


def slots(state, flat, length):
    """The slots of a flat buffer that ``length`` tokens take, in their order there: a view (B, KV, slots, HD)."""
    B, KV, HD = state.batch_size, state.n_kv_heads, state.head_dim
    if state.window:  # a ring of as many slots as the window, of which the first are in use
        return flat.reshape(B, KV, state.window, HD)[:, :, : min(length, state.window)]
    return flat[: B * KV * length * HD].reshape(B, KV, length, HD)


def read_state(fields, make, prefix=""):
    """Take the fields of one state, and make it, with buffers of full size of its own."""
    sizes = {
        name: fields.integer(f"{prefix}{name}", 0 if name == "window" else 1)
        for name in ("batch_size", "n_kv_heads", "head_dim", "window", "max_tokens")
    }
    length = fields.integer(f"{prefix}cached_tokens", 0, sizes["max_tokens"])
    B, KV, HD, W, room = sizes.values()
    shape = (B, KV, min(length, W or LARGEST), HD)
    arrays = [fields.finite(f"{prefix}{name}", shape) for name in ("keys", "values")]
    buffers = allocate_buffers(B, KV, HD, W, room, fields.where)
    state = make(B, KV, HD, room, *buffers, length, W)
    fill(state, *arrays)
    return state


def fill(state, keys, values):
    """Write keys and values, as `slots` gives them, to where they belong; the spare room is not touched."""
    for flat, array in ((state._k, keys), (state._v, values)):
        slots(state, flat, state.cached_tokens)[:] = array
