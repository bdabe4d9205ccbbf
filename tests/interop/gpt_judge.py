"""Builds Megatron's model from an argument file, loads a torch_dist checkpoint into it, and says what it computes.

The model is a GPTModel, or a HybridModel where the arguments have a pattern of layers.

usage: gpt_judge.py JOBS
JOBS is a JSON file with a list of jobs, each:
  name        of the job
  checkpoint  the torch_dist directory, e.g. .../release
  arguments   Megatron-LM's arguments, as text
  ids         token ids, a list of rows; without it nothing is computed
  output      a safetensors file for the logits
  wide_norms  true if its norms of q and k span all heads, which no argument says
  tracker     true if Megatron-LM's load_checkpoint shall find the checkpoint, by the tracker file above it
  from_gpt    true if the checkpoint is a GPTModel's and the model a HybridModel
  plain       true if PyTorch wrote the directory, without Megatron's `_extra_state` entries
  save        an empty directory: what was loaded is saved there, as a training run does
For each job it prints one line of JSON: name; missing, unexpected and mis-shaped keys; error, if there was one.

A process of its own, since Megatron's state is global and parts of it are replaced for good, see megatron_on_cpu.py.
Beside that: Transformer Engine is not there, so the model is the one that Megatron itself makes for ModelOpt, of local
modules whose checkpoint keys are Transformer Engine's; it computes in float32, whatever the arguments say, without
fused kernels. Norms are written out here, since PyTorch's has no weights around zero.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import traceback

VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
ON_CPU = {
    "bf16": False, "fp16": False, "use_cpu_initialization": True,
    "bias_activation_fusion": False, "bias_dropout_fusion": False, "masked_softmax_fusion": False,
    "apply_rope_fusion": False, "persist_layer_norm": False, "gradient_accumulation_fusion": False,
    "moe_grouped_gemm": False, "moe_permute_fusion": False, "moe_token_dispatcher_type": "allgather",
    "moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.0, "transformer_impl": "local",
}  # fmt: skip


# Latent attention with norms, and queries without a latent: 0.19 gives those a norm that the models do not have.
BEFORE = pathlib.Path(sys.prefix) / "before"


def _is_for_core_before(job):
    flags = job["arguments"].split()
    return {"--multi-latent-attention", "--qk-layernorm"} <= set(flags) and "--q-lora-rank" not in flags


def run(folder, jobs):
    """For tests: judges the jobs in processes of their own. What they say of each, by name."""
    # Its Megatron-LM is not there.
    before = [job | {"tracker": False} for job in jobs if _is_for_core_before(job)]
    said = _run(folder, [job for job in jobs if not _is_for_core_before(job)], {})
    return said | (_run(folder, before, {"PYTHONPATH": str(BEFORE)}) if before else {})


def _run(folder, jobs, variables):
    file = folder / "jobs.json"
    file.write_text(json.dumps(jobs))
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"} | variables
    # A group of its own: the processes that Megatron starts do not all end with it.
    process = subprocess.Popen(
        [sys.executable, __file__, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=400)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert process.returncode == 0, err[-4000:]
    said = [json.loads(line) for line in out.splitlines() if line.startswith('{"name"')]
    return {job.pop("name"): job for job in said}


def start(folder):
    """What must be done once, before a model is built."""
    import torch

    import mamba_on_cpu
    import megatron_on_cpu

    mamba_on_cpu.install()
    megatron_on_cpu.install()
    import megatron.core.post_training.modelopt.gpt.model_specs as model_specs
    from megatron.core import parallel_state
    from megatron.core.models import backends
    from megatron.core.ssm import gated_delta_net
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import moe_utils

    torch.set_num_threads(1)
    rendezvous = (folder / "rendezvous").as_uri()
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    norm, attention, l2norm = _parts()
    model_specs.Norm = norm
    backends.LocalSpecProvider.layer_norm = lambda self, rms_norm=False, for_qk=False: norm
    # Names that are missing or None without Transformer Engine or flash-linear-attention.
    multi_latent_attention.TELinear = type("TELinear", (), {})
    moe_utils.te_general_gemm = None
    # A module in 0.16.1, a package in 0.19.2.
    linear = getattr(gated_delta_net, "common", gated_delta_net)
    linear.HAVE_FLA, linear.l2norm = True, l2norm
    return attention, norm


def _parts():
    import torch

    class Norm(torch.nn.Module):
        """RMSNorm; with layernorm_zero_centered_gamma its factor is 1 + weight."""

        def __init__(self, config, hidden_size, eps=1e-5):
            super().__init__()
            assert config.normalization == "RMSNorm"
            self.eps, self.offset = eps, float(config.layernorm_zero_centered_gamma)
            self.weight = torch.nn.Parameter(torch.full((hidden_size,), 1.0 - self.offset))

        def forward(self, x):
            scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
            return (x.float() * scale * (self.weight.float() + self.offset)).type_as(x)

    class Attention(torch.nn.Module):
        """Softmax attention whose keys and values may differ in width: Megatron's local one has one width."""

        def __init__(self, softmax_scale=None, **options):
            super().__init__()
            self.scale = softmax_scale

        def forward(self, query, key, value, attention_mask, **options):
            # [tokens, batch, heads, width]
            scores = torch.einsum("qbhd,kbhd->bhqk", query, key) * self.scale
            probabilities = scores.masked_fill(attention_mask, float("-inf")).softmax(-1)
            return torch.einsum("bhqk,kbhd->qbhd", probabilities, value).flatten(2)

    def l2norm(x, dim=-1, eps=1e-6):
        return x * torch.rsqrt((x * x).sum(dim=dim, keepdim=True) + eps)

    return Norm, Attention, l2norm


def _sizes(args):
    """What GPTModel and HybridModel take alike."""
    return dict(
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
    )


def make_hybrid_model(args, norm):
    import megatron.core.post_training.modelopt.hybrid.model_specs as model_specs
    import torch
    from megatron.core.models.hybrid import hybrid_block
    from megatron.core.models.hybrid.hybrid_model import HybridModel
    from megatron.core.transformer.moe import moe_layer

    import megatron_arguments

    # Where Megatron takes Transformer Engine's without asking for a specification.
    model_specs.Norm = hybrid_block.TENorm = norm
    moe_layer.HAVE_TE, moe_layer.TELinear = True, _undivided_linear()
    overrides = dict(ON_CPU, params_dtype=torch.float32, use_mamba_mem_eff_path=False)
    return HybridModel(
        config=megatron_arguments.make_config(args, **overrides),
        hybrid_stack_spec=model_specs.get_hybrid_stack_modelopt_spec(local_core_attention=True, remap_te_layernorm=True),
        hybrid_layer_pattern=args.hybrid_layer_pattern,
        **_sizes(args),
    )


def make_model(args, attention, norm, has_wide_norms=False):
    import torch

    if args.hybrid_layer_pattern:
        model = make_hybrid_model(args, norm)
    else:
        model = make_gpt_model(args, attention, norm, has_wide_norms)
    # What is not loaded shall show.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    return model.eval()


def make_gpt_model(args, attention, norm, has_wide_norms):
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec
    from megatron.core.post_training.modelopt.gpt.model_specs import get_gpt_modelopt_spec

    import megatron_arguments
    import wide_norms

    overrides = dict(ON_CPU, params_dtype=torch.float32)
    if args.experimental_attention_variant:
        # Megatron's own kernel in plain PyTorch.
        overrides["deterministic_mode"] = True
        # Hadamard's rotation changes no score, and asks for bfloat16.
        overrides["dsa_indexer_rotate_activation"] = False
    config = megatron_arguments.make_config(args, **overrides)
    block = get_gpt_modelopt_spec(config, local_core_attention=True, remap_te_layernorm=True)
    if has_wide_norms:
        wide_norms.widen_norms(block, config)
    if config.multi_latent_attention:
        _set_latent_attention(block, attention)
    if config.experimental_attention_variant == "dsa":
        _set_sparse_attention(block, config, norm)
    elif config.experimental_attention_variant:
        block.layer_specs = _with_linear_attention(block.layer_specs, config, norm)
    mtp = None
    if args.mtp_num_layers:
        mtp = get_gpt_mtp_block_spec(config, block.layer_specs[-1], use_transformer_engine=False)
    return GPTModel(
        config=config,
        transformer_layer_spec=block,
        rope_scaling=args.use_rope_scaling,
        **_sizes(args),
        mtp_block_spec=mtp,
    )


def _set_latent_attention(block, attention):
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    for layer in block.layer_specs:
        parts = layer.submodules.self_attention.submodules
        parts.core_attention = attention
        parts.linear_q_down_proj = parts.linear_kv_down_proj = ColumnParallelLinear


def _undivided_linear():
    """Transformer Engine's linear layer that each process has whole."""
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    class Linear(ColumnParallelLinear):
        def __init__(self, *sizes, parallel_mode=None, **options):
            super().__init__(*sizes, **options)

    return Linear


def _set_sparse_attention(block, config, norm):
    """Gives the layers the latent attention whose tokens indexers choose, of local modules."""
    import torch
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt.experimental_attention_variant_module_specs import get_dsa_module_spec_for_backend
    from megatron.core.transformer.experimental_attention_variant import absorbed_mla

    linear = _undivided_linear()

    class LayerNorm(torch.nn.LayerNorm):
        def __init__(self, config, hidden_size, eps):
            super().__init__(hidden_size, eps)

    class Backend(LocalSpecProvider):
        def linear(self):
            return linear

        def layer_norm(self, rms_norm=False, for_qk=False, **options):
            return norm if rms_norm else LayerNorm

    absorbed_mla.TELinear = linear
    for layer in block.layer_specs:
        layer.submodules.self_attention = get_dsa_module_spec_for_backend(config, Backend())
        names = layer.submodules.sharded_state_dict_keys_map
        for name in [name for name in names if name.startswith(("input_layernorm", "self_attention"))]:
            del names[name]


def _with_linear_attention(layers, config, norm):
    """Replaces the attention of linear layers, which ModelOpt's specification does not know."""
    import copy

    from megatron.core.models.gpt.experimental_attention_variant_module_specs import get_linear_attention_pattern
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec

    changed = []
    for layer, is_linear in zip(layers, get_linear_attention_pattern(config), strict=True):
        if is_linear:
            layer = copy.deepcopy(layer)
            parts = GatedDeltaNetSubmodules(in_proj=ColumnParallelLinear, out_norm=norm, out_proj=RowParallelLinear)
            layer.submodules.self_attention = ModuleSpec(module=GatedDeltaNet, submodules=parts)
            layer.submodules.sharded_state_dict_keys_map["input_layernorm."] = "self_attention.in_proj.layer_norm_"
        changed.append(layer)
    return changed


def wanted_entries(state):
    """Key to global shape of each tensor, and the keys of other entries, that loading this state asks for."""
    import copy

    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories

    state = copy.copy(state)
    apply_factories(state)
    tensors, others = {}, set()
    for entry in nested_values(state):
        if isinstance(entry, ShardedTensor):
            tensors[entry.key] = list(entry.global_shape)
        elif isinstance(entry, ShardedObject):
            others.add(entry.unique_key)
    return tensors, others


def held_entries(checkpoint):
    """The same of what the checkpoint has."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    entries = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    tensors = {key: list(entry.size) for key, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}
    return tensors, set(entries) - set(tensors)


def compare(wanted, held):
    both = sorted(set(wanted) & set(held))
    return {
        "missing": sorted(set(wanted) - set(held)),
        "unexpected": sorted(set(held) - set(wanted)),
        "shapes": {key: [wanted[key], held[key]] for key in both if held[key] != wanted[key]},
    }


def compute(model, ids):
    """The logits, and those of a layer of MTP: Megatron itself makes only a loss of them."""
    import torch

    positions = torch.arange(ids.shape[1]).expand_as(ids)
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)[None, None]
    seen = {}
    model.decoder.register_forward_hook(
        lambda decoder, arguments, options, hidden: seen.update(options, hidden=hidden), with_kwargs=True
    )
    mtp = model.mtp if model.mtp_process else None
    layers = model.config.mtp_num_layers
    model.mtp_process, model.config.mtp_num_layers = False, None
    with torch.no_grad():
        logits = {"logits": model(ids, positions, mask)}
        if mtp is not None:
            model.config.mtp_num_layers = layers
            rotary = {"rotary_pos_emb": seen["rotary_pos_emb"]}
            hidden = mtp(ids, positions, seen["hidden"], mask, embedding=model.embedding, **rotary)
            # [tokens of the main model, then those of MTP; batch; hidden]
            logits["mtp_logits"] = model.output_layer(hidden.chunk(2)[1])[0].transpose(0, 1)
    return {name: tensor.float().contiguous() for name, tensor in logits.items()}


def judge(job, attention, norm):
    import torch
    from megatron.core import dist_checkpointing
    from safetensors.torch import save_file

    import megatron_arguments

    args = megatron_arguments.parse(job["arguments"])
    model = make_model(args, attention, norm, job.get("wide_norms", False))
    checkpoint = job["checkpoint"]
    # Megatron-LM hands on what the checkpoint says of itself; it decides whether each layer has keys of its own.
    content = dist_checkpointing.load_content_metadata(checkpoint) or {}
    state = model.sharded_state_dict(metadata=dict(content))
    if job.get("from_gpt"):
        point_at_gpt(state, args)
    tensors, others = wanted_entries(state)
    held_tensors, held_others = held_entries(checkpoint)
    found = compare(tensors, held_tensors) | {"content_metadata": content}
    if "save" in job:
        # A vocabulary is padded by whoever loads it.
        found["shapes"] = {key: shapes for key, shapes in found["shapes"].items() if key not in VOCABULARY}
    found["missing_extra_states"] = [] if job.get("plain") else sorted(others - held_others)
    if found["missing"] or found["shapes"] or found["missing_extra_states"]:
        return found

    if job.get("tracker"):
        load_by_tracker(model, job)
    else:
        load_directly(model, state, job)
    if "save" in job:
        save(model, args, job["save"])
    if "ids" in job:
        # Last, for it takes the model's layer of MTP away.
        save_file(compute(model, torch.tensor(job["ids"])), job["output"])
    return found


def point_at_gpt(state, args):
    """As load_checkpoint does where a HybridModel finds a GPT model's checkpoint."""
    from megatron.core.dist_checkpointing import gpt_checkpoint_interop as interop

    maps = interop.gpt_compatible_layer_maps(args.hybrid_layer_pattern)
    interop.retarget_sharded_state_dict_to_gpt_checkpoint(state, maps)


def load_directly(model, state, job):
    from megatron.core import dist_checkpointing

    if job.get("plain"):
        state = {key: entry for key, entry in state.items() if not key.endswith("_extra_state")}
    loaded = dist_checkpointing.load({"model": state}, job["checkpoint"])["model"]
    report = model.load_state_dict(loaded, strict=False)
    left = [key for key in report.missing_keys if not key.endswith("_extra_state")] + report.unexpected_keys
    assert not left, left


def load_by_tracker(model, job):
    """As Megatron-LM starts a run: its own parser reads the arguments, and its own loader the directory."""
    from megatron.training import arguments, checkpointing, global_vars

    options = f"--load {pathlib.Path(job['checkpoint']).parent} --no-load-optim --no-load-rng --micro-batch-size 1"
    sys.argv = ["", *job["arguments"].split(), *options.split(), "--exit-on-missing-checkpoint"]
    args = arguments.parse_args()
    # As its validate_args, which asks for GPUs.
    args.use_dist_ckpt, args.add_position_embedding = True, True
    args.consumed_train_samples = args.skipped_train_samples = args.consumed_valid_samples = 0
    global_vars._GLOBAL_ARGS = args
    # Nothing is trained here, so that there are no batches to count.
    checkpointing.update_num_microbatches = lambda *counts, **options: None
    # Local modules keep nothing of Transformer Engine's.
    checkpointing.load_checkpoint([model], None, None, strict=False)
    left = [name for name, parameter in model.named_parameters() if parameter.isnan().any()]
    assert not left, left


def save(model, args, folder):
    """What Megatron-LM saves after 100 steps, without an optimizer."""
    import torch
    from megatron.core import dist_checkpointing

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Training moves the rows of the padding too.
            if name in VOCABULARY:
                parameter[args.vocab_size :] = 0.5
    content = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    state = {"model": model.sharded_state_dict(metadata=dict(content))}
    state |= {"args": args, "iteration": 100, "checkpoint_version": 3.0}
    dist_checkpointing.save(state, folder, content_metadata=content)


def main(jobs):
    parts = start(jobs.resolve().parent)
    for job in json.loads(jobs.read_text()):
        try:
            found = judge(job, *parts)
        except (Exception, SystemExit):  # argparse leaves with the latter
            found = {"error": traceback.format_exc()}
        print(json.dumps({"name": job["name"]} | found), flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
