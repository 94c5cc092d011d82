"""The state of a whole model in one file: that of each layer, as `mojolearn.saved_state` keeps one."""

from mojolearn.archive import admit_target, read_fields, write_fields
from mojolearn.models.causal_lm import CausalLM
from mojolearn.models.model_state import check_layers, claim_layers
from mojolearn.saved_state import (
    admit_model,
    check_geometry,
    head,
    match_head,
    read_state,
    state_fields,
)
from mojolearn.scalars import counted
from mojolearn.state import TransformerState

FORMAT = "mojolearn model state 1"
WHAT = "a saved state"
SAVE, LOAD = "CausalLMState.save", "CausalLMState.load"


def save_model_state(state, path, model):
    """Write a state into a file; see `CausalLMState.save`."""
    target = admit_target(path, SAVE)
    admit_model(model, CausalLM, SAVE)
    with claim_layers(state, SAVE):
        check_layers(state, SAVE)
        if model is not None:
            _check_layers_of(state, model, f"{SAVE}: ")
        fields = head(FORMAT, model) | {"layers": len(state.blocks)}
        for layer, block in enumerate(state.blocks):
            where = f"{SAVE}: layer {layer}"
            fields |= state_fields(block, f"{where}: ", where, f"layer{layer}.")
        write_fields(target, fields, SAVE)


def load_model_state(make, path, model):
    """Read a state from a file; see `CausalLMState.load`. ``make`` is the class."""
    admit_model(model, CausalLM, LOAD)
    fields = read_fields(path, LOAD, WHAT)
    match_head(fields, FORMAT, "the state of a whole model", model)
    blocks = []
    for layer in range(fields.integer("layers", 1)):
        blocks.append(read_state(fields, TransformerState, f"layer{layer}."))
    fields.finish()
    state = make(blocks)
    try:
        check_layers(state, fields.where)
    except ValueError as error:  # what no state that was saved can be
        raise ValueError(f"{error}; the file is damaged") from None
    if model is not None:
        _check_layers_of(state, model, f"{fields.where}: ")
    return state


def _check_layers_of(state, model, where):
    if len(state.blocks) != model.n_layers:
        raise ValueError(
            f"{where}the state has {counted(len(state.blocks), 'layer')}, but the model has {model.n_layers}"
        )
    for layer, (own, block) in enumerate(zip(state.blocks, model.blocks, strict=True)):
        check_geometry(own, block.options, f"{where}layer {layer} of the state")
