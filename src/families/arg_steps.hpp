#pragma once
/// The steps that rows of arguments are made of: write_... from config.json to Megatron-LM's arguments, the others
/// back.

#include "families/arg_rows.hpp"

namespace glu_ckpt {

// ---- config.json -> arguments -----------------------------------------------------------------

/// "[0]*1+[1]*2": runs of equal flags, without a space.
std::string layer_pattern(const std::vector<bool>& flags);
/// Writes the row's value; `True` is a flag.
void write_value(ArgsWriter& args, const ArgRow& row);
/// Writes the row's value for a model that has experts.
void write_with_experts(ArgsWriter& args, const ArgRow& row);
/// Writes the row's field, a whole number, 0 where it is missing.
void write_integer(ArgsWriter& args, const ArgRow& row);
template <Dim dim>
void write_extent(ArgsWriter& args, const ArgRow& row) {
  args.add(row.argument, args.model.extent(dim));
}
void write_layers(ArgsWriter& args, const ArgRow& row);
void write_heads(ArgsWriter& args, const ArgRow& row);
void write_dense_width(ArgsWriter& args, const ArgRow& row);
void write_positions(ArgsWriter& args, const ArgRow& row);
void write_mtp_layers(ArgsWriter& args, const ArgRow& row);
void write_num_experts(ArgsWriter& args, const ArgRow& row);
void write_expert_width(ArgsWriter& args, const ArgRow& row);
void write_expert_layers(ArgsWriter& args, const ArgRow& row);
void write_shared_width(ArgsWriter& args, const ArgRow& row);
void write_glu_orders(ArgsWriter& args, const ArgRow& row);
void write_router(ArgsWriter& args, const ArgRow& row);
void write_epsilon(ArgsWriter& args, const ArgRow& row);
void write_swiglu(ArgsWriter& args, const ArgRow& row);
void write_quick_geglu(ArgsWriter& args, const ArgRow& row);
/// Warns of a factor other than 1 that Megatron-Core does not have.
void warn_of_factor(ArgsWriter& args, const ArgRow& row);
void warn_of_softmax_scale(ArgsWriter& args, const ArgRow& row);
void write_query_groups(ArgsWriter& args, const ArgRow& row);
void write_attention_biases(ArgsWriter& args, const ArgRow& row);
void write_qk_norms(ArgsWriter& args, const ArgRow& row);
void write_query_latent(ArgsWriter& args, const ArgRow& row);
void write_latent_epsilon(ArgsWriter& args, const ArgRow& row);
void write_chunked_attention(ArgsWriter& args, const ArgRow& row);
void write_window(ArgsWriter& args, const ArgRow& row);
void write_delta(ArgsWriter& args, const ArgRow& row);
void write_indexers(ArgsWriter& args, const ArgRow& row);
void write_positions_of_heads(ArgsWriter& args, const ArgRow& row);
void write_vocabulary(ArgsWriter& args, const ArgRow& row);
void write_untied(ArgsWriter& args, const ArgRow& row);
void write_dtype(ArgsWriter& args, const ArgRow& row);

// ---- arguments -> config.json -----------------------------------------------------------------

using JsonWord = std::optional<std::string>;

JsonWord as_integer(SavedArgs& args, const ArgRow& row);
JsonWord as_float(SavedArgs& args, const ArgRow& row);
JsonWord as_flag(SavedArgs& args, const ArgRow& row);
JsonWord as_opposite(SavedArgs& args, const ArgRow& row);
/// A number that is 0, or 1, where it was not saved.
JsonWord as_count(SavedArgs& args, const ArgRow& row);
JsonWord as_one_or_more(SavedArgs& args, const ArgRow& row);
JsonWord as_factor(SavedArgs& args, const ArgRow& row);
/// All models of the family have the row's value, and say so; of `only`, those that do not say are taken for such.
JsonWord always(SavedArgs& args, const ArgRow& row);
JsonWord only(SavedArgs& args, const ArgRow& row);
/// Refuses the epsilon of the indexers' norm where it is not the row's.
JsonWord indexer_epsilon(SavedArgs& args, const ArgRow& row);
/// The field says what Megatron-Core always does.
JsonWord constant(SavedArgs& args, const ArgRow& row);

JsonWord stored_dtype(SavedArgs& args, const ArgRow& row);
JsonWord epsilon(SavedArgs& args, const ArgRow& row);
JsonWord vocabulary(SavedArgs& args, const ArgRow& row);
JsonWord key_heads(SavedArgs& args, const ArgRow& row);
JsonWord query_latent(SavedArgs& args, const ArgRow& row);
JsonWord shared_experts(SavedArgs& args, const ArgRow& row);
JsonWord shared_experts_if_any(SavedArgs& args, const ArgRow& row);
JsonWord shared_width(SavedArgs& args, const ArgRow& row);
JsonWord width_of_all(SavedArgs& args, const ArgRow& row);
JsonWord softmax_not_first(SavedArgs& args, const ArgRow& row);
JsonWord zero_centred(SavedArgs& args, const ArgRow& row);
JsonWord head_norms(SavedArgs& args, const ArgRow& row);
/// Refuses norms of q and k unless the tensors say that each spans all heads: no argument does.
JsonWord wide_norms(SavedArgs& args, const ArgRow& row);
JsonWord expert_groups(SavedArgs& args, const ArgRow& row);
JsonWord no_groups(SavedArgs& args, const ArgRow& row);
JsonWord rope_kind(SavedArgs& args, const ArgRow& row);
JsonWord rope_base(SavedArgs& args, const ArgRow& row);
JsonWord rope_scaling(SavedArgs& args, const ArgRow& row);
/// The object that rope_scaling makes where there is YaRN; `more` is members to append, each behind a ",\n    ".
std::string yarn_object(SavedArgs& args, const ArgRow& row, std::string_view more);
/// The length of the texts that YaRN stretches from.
i64 yarn_length(const SavedArgs& args);
/// Dimensions of a head that are turned, as Megatron-Core counts them: the whole part of rotary_percent * kv_channels.
i64 rotated_dims(SavedArgs& args);
/// The same as a field's value, if it says all of the row's argument, rotary_percent.
JsonWord as_rotated_dims(SavedArgs& args, const ArgRow& row);
JsonWord only_expert_layers(SavedArgs& args, const ArgRow& row);
JsonWord first_dense(SavedArgs& args, const ArgRow& row);
JsonWord layer_kinds(SavedArgs& args, const ArgRow& row);
JsonWord dense_layers(SavedArgs& args, const ArgRow& row);
JsonWord expert_layers(SavedArgs& args, const ArgRow& row);
JsonWord expert_step(SavedArgs& args, const ArgRow& row);
JsonWord delta_kinds(SavedArgs& args, const ArgRow& row);
JsonWord indexer_kinds(SavedArgs& args, const ArgRow& row);
JsonWord window_kinds(SavedArgs& args, const ArgRow& row);
JsonWord all_full_attention(SavedArgs& args, const ArgRow& row);
JsonWord all_with_rope(SavedArgs& args, const ArgRow& row);
JsonWord window_width(SavedArgs& args, const ArgRow& row);
/// The window of all layers, null where they have none.
JsonWord window_of_all(SavedArgs& args, const ArgRow& row);
JsonWord no_experts(SavedArgs& args, const ArgRow& row);
JsonWord llama3_scaling(SavedArgs& args, const ArgRow& row);
JsonWord no_window(SavedArgs& args, const ArgRow& row);
JsonWord usual_softmax_scale(SavedArgs& args, const ArgRow& row);

}  // namespace glu_ckpt
