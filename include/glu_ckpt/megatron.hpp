#pragma once
/// The rules by which Megatron-LM and TransformerEngine fold and split the keys of grouped linear
/// modules (P = module prefix, E = experts):
///   indexed   P weight0 .. P weight{E-1}, P bias0 ..     one tensor per expert
///   grouped   P weight, P bias                           one tensor, experts on axis 0
/// Pure functions on names, shapes and positions of bytes; nothing is read or moved.
///
/// Sources, at NVIDIA/Megatron-LM d98e8a6 and NVIDIA/TransformerEngine d0067d0:
///   [te_ext]  megatron/core/extensions/transformer_engine.py
///   [distopt] megatron/core/optimizer/distrib_optimizer.py
///   [fp8]     megatron/core/fp8_utils.py
///   [te]      transformer_engine/pytorch/module/grouped_linear.py
///
/// Differences from upstream, all of them towards refusal:
/// - Upstream removes keys before it stacks or splits, so a failure leaves a torn dict. Here a failure
///   changes nothing: dicts are taken by value, and every function returns a new one or throws.
/// - torch.stack promotes members of different dtypes; here they are refused, since that changes bytes.
/// - TransformerEngine unbinds a grouped tensor without counting, which then fails (or, not strict,
///   silently drops experts) in the loader; here a count other than E is refused.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// A run of bytes of one source tensor.
struct Piece {
  /// Index of the tensor in whatever list the caller keeps.
  std::size_t source = 0;
  i64 offset = 0;
  i64 bytes = 0;
  bool operator==(const Piece&) const = default;
};

enum class Storage {
  /// The pieces hold elements of the dtype.
  Plain,
  /// The pieces hold the uint8 rowwise data of a TransformerEngine quantized tensor; the dtype is the nominal one.
  Quantized,
  /// Like Quantized, but the rule asks for the dequantized values. That is arithmetic: a mover of bytes refuses it.
  Dequantized,
};

/// The value of one key: a row-major tensor whose bytes are its pieces in order.
struct StateTensor {
  Dtype dtype = Dtype::U8;
  std::vector<i64> shape;
  std::vector<Piece> pieces;
  Storage storage = Storage::Plain;
  /// Set for a TransformerEngine GroupedTensor, quantized or not: its number of members. Its shape is
  /// the wrapper's, (E, out, in) or (E, out).
  std::optional<i64> num_members;
  /// The attribute `quantized_tensors`: absent where the members have not been split off yet.
  std::optional<std::vector<StateTensor>> cached_members;
};

struct StateEntry {
  std::string key;
  StateTensor tensor;
};

/// The entries are in the order of the Python dict, and keys are unique.
using StateDict = std::vector<StateEntry>;

/// A TEGroupedLinear. The flags are independent: a grouped weight with indexed biases is legal.
struct GroupedModule {
  i64 num_experts = 1;
  bool single_grouped_weight = false;
  bool single_grouped_bias = false;
  bool use_bias = false;
};

/// The parameters that TransformerEngine builds: without NVTE_GROUPED_LINEAR_SINGLE_PARAM > 0 it ignores both single
/// flags. [te utils.py resolve_grouped_linear_single_param_flags]
GroupedModule gate_single_params(GroupedModule module, bool single_param_enabled);

/// The fate of a key in the other form where the wanted form is there already, and to an
/// incomplete set of indexed keys beside a grouped one. A TEGroupedLinear on today's TransformerEngine
/// cleans up first; Megatron-LM's hook comes after it. Modules of `te.ops` have neither.
enum class RedundantKeys {
  /// Both stay, and one indexed key is enough to keep a grouped one whole. Megatron-LM's hook [te_ext
  /// _normalize_grouped_parameter_keys].
  Leave,
  /// The wanted form wins, the other goes; an incomplete set is overwritten from the grouped key. [te
  /// _remap_grouped_weight_state_dict_keys, _remap_grouped_bias_state_dict_keys]
  CleanUp,
};
/// "leave", "clean-up".
std::string_view to_string(RedundantKeys policy);
/// Throws Usage.
RedundantKeys parse_redundant_keys(std::string_view text);

/// The tensor cut into one per expert, first rule that fits [te_ext _split_grouped_checkpoint_tensor]:
///   1. GroupedTensor          its members as they are; their number must be E
///   2. shape[0] == E          E slices, axis 0 removed; so [E, in] made of E packed [1, in] loses its rows' axis
///   3. shape[0] % E == 0      E chunks, axis 0 kept; a flat tensor gives flat pieces
///   4. otherwise              ExpertShape, naming key, shape and E
/// Slices of a quantized tensor that is not a GroupedTensor come out Dequantized, as PyTorch's
/// operators see it.
std::vector<StateTensor> split_grouped(const StateTensor& tensor, std::string_view key, i64 num_experts);

/// The keys that a module expects under `prefix` (empty, or ending in "."): weight, then bias if
/// `use_bias`. Keys other than the module's own, indices >= E among them, are left alone. New keys go to
/// the end, in order; a key that is overwritten keeps its place.
StateDict fold_or_split(StateDict dict, std::string_view prefix, const GroupedModule& module, RedundantKeys policy);

/// One entry of PyTorch's named_modules().
struct NamedModule {
  std::string path;
  /// Absent for a module that is not a grouped linear one; it is skipped.
  std::optional<GroupedModule> grouped;
};

/// "module.module.decoder" -> "decoder": only what leads.
std::string_view strip_module_prefixes(std::string_view name);

/// Megatron-LM's rule for the weights that `--load-main-params-from-ckpt` reads [distopt
/// _normalize_state_dict_for_grouped_params]. Keys are matched by how they end, so prefixes may differ
/// from the module's path. Taken literally, with what follows from it:
/// - nothing marks where a module's name begins: `experts.linear_fc1` also matches `shared_experts.linear_fc1`;
/// - the keys of one fold may have different prefixes; that of index 0 wins;
/// - an index that several keys match counts as absent. It stops a fold, but not a split, which may then
///   overwrite one of them.
StateDict normalize_for_grouped_params(StateDict dict, std::span<const NamedModule> modules);

/// Returns the sub-dicts of a checkpoint that hold the weights of each model chunk; one empty name where the checkpoint
/// itself does. `model0` (Megatron-LM) goes before `model_0` (NeMo), before `model`. PartMissing where a chunk has
/// none. [distopt _build_model_param_to_state_dict_param_map]
std::vector<std::string> model_dict_names(std::span<const std::string> keys, std::size_t num_chunks);

struct NamedParameter {
  std::string name;
  std::vector<i64> shape;
};

/// The entry of each parameter: the only key that ends with its name and that no earlier parameter
/// took. PartMissing or RedundantKeys where there is not exactly one, ExpertShape where shapes differ:
/// a packed [E*out, in] is not reshaped to [E, out, in]. [same function]
std::vector<std::size_t> match_parameters(const StateDict& dict, std::span<const NamedParameter> parameters);

}  // namespace glu_ckpt
