#include "arch/loads_in.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "arch/dense_table.hpp"
#include "arch/meant_type.hpp"
#include "layout/layout_table.hpp"

namespace glu_ckpt {
namespace {

class LoaderFinder {
 public:
  explicit LoaderFinder(const StoredModel& model)
      : layout_(model.layout), model_(model), naming_(find_naming(model.layout.naming)) {}

  LoadsIn find() const {
    if (!model_.is_other.empty()) return unknown("{}", model_.is_other);
    if (model_.architecture == nullptr) {
      if (is_of_unmapped_family()) return find_unmapped();
      if (model_.experts.empty() && !refusal_of(model_.model_type).empty())
        return unknown("{}", model_.no_architecture);
      if (model_.experts.empty() && !model_.says_experts && model_.has_config && !model_.model_type.empty())
        return unknown(
            "models of type '{}'{} are none that glu-ckpt knows, and no experts are there; docs/targets.md lists those "
            "that it converts",
            model_.model_type, words_of_meant_type(model_.model_type));
      if (is_of_a_run()) return unknown("{}; {}", model_.no_architecture, of_a_run());
      return nothing("{}{}", model_.no_architecture, model_.not_whole.empty() ? "" : "; " + model_.not_whole);
    }
    if (!model_.not_whole.empty()) return nothing("{}", model_.not_whole);
    if (naming_ == nullptr || model_.rest.empty()) return nothing("{}", model_.why_no_rest);
    if (has_unknown_order()) return nothing_of_unknown_order();
    if (!layout_.is_dense() && layout_.naming.substr(0, model_.rest.size()) != model_.rest)
      return nothing("the experts are named as in {}, the rest of the model as in {}", layout_.naming, model_.rest);
    if (model_.rest == "megatron") return find_megatron();
    if (model_.rest == "torchtitan") return find_torchtitan();
    return find_hf();
  }

 private:
  template <typename... Args>
  static LoadsIn nothing(fmt::format_string<Args...> text, Args&&... args) {
    return {{}, fmt::format(text, std::forward<Args>(args)...)};
  }

  template <typename... Args>
  static LoadsIn unknown(fmt::format_string<Args...> text, Args&&... args) {
    return {{}, fmt::format(text, std::forward<Args>(args)...), true};
  }

  bool has_unknown_order() const { return layout_.glu.kind == Glu::Kind::Unknown; }

  static LoadsIn nothing_of_unknown_order() {
    return nothing("nobody knows in which order FC1 holds gate and up; --from-glu or `stamp` says it");
  }

  /// A trainer's own checkpoint, of which no file says what model it is.
  bool is_of_a_run() const {
    return model_.is_trained && model_.not_whole.empty() && model_.format == "torch-dist" &&
           layout_.naming.starts_with("megatron");
  }

  std::string of_a_run() const {
    const std::string text = "the run that it is of loads it, with its own arguments";
    const bool known = layout_.glu.kind == Glu::Kind::Contiguous || layout_.glu.kind == Glu::Kind::Interleaved;
    const bool shared_known = !layout_.shared_glu || layout_.shared_glu->kind != Glu::Kind::Unknown;
    if (!known || !shared_known) return text;
    const std::string flags = megatron_flags();
    return text + " and " + (flags.empty() ? "no moe_mlp_glu_interleave_size" : flags + without_fused());
  }

  /// Returns the arguments that say the order of gate and up; empty where both are contiguous.
  std::string megatron_flags() const {
    std::string flags;
    const auto add = [&](std::string_view name, const Glu& glu) {
      if (glu.kind == Glu::Kind::Interleaved)
        flags += fmt::format("{}{}={}", flags.empty() ? "" : ", ", name, glu.block_rows);
    };
    if (layout_.is_dense())
      return layout_.glu.kind == Glu::Kind::Interleaved ? fmt::format("{}", fmt::join(kFusedDenseArgs, ", ")) : flags;
    add("moe_mlp_glu_interleave_size", layout_.glu);
    if (layout_.shared_glu) add("moe_shared_expert_glu_interleave_size", *layout_.shared_glu);
    return flags;
  }

  /// Says that blocks of another size than the fused kernel reads are no use to it.
  std::string without_fused() const {
    constexpr i64 kFusedGroupedRows = 32;
    return layout_.is_dense() || layout_.glu.kind != Glu::Kind::Interleaved ||
                   layout_.glu.block_rows == kFusedGroupedRows
               ? ""
               : fmt::format(", without TransformerEngine's fused grouped MLP, which reads interleaved:{} alone",
                             kFusedGroupedRows);
  }

  /// Says which experts have a form that the software of the naming does not store; empty where none has.
  std::string foreign_form() const {
    for (const StoredExperts& stored : model_.experts) {
      const bool is_shared = stored.set == ExpertSet::Shared, is_gated = stored.glu.kind != Glu::Kind::None;
      const std::string_view whose = is_shared ? "shared" : "routed", option = is_shared ? "--shared-glu" : "--glu";
      const auto reads = [&](bool fused) { return is_native(*naming_, stored.set, stored.experts, fused); };
      if (is_gated && !reads(stored.fused) && !reads(!stored.fused))
        return fmt::format("programs do not store experts {} under these names", to_string(stored.experts));
      if (is_gated && !reads(stored.fused))
        return fmt::format("gate and up of the {} experts are {}, and programs read {} under these names; {} {}", whose,
                           stored.fused ? "one tensor" : "two tensors", stored.fused ? "two tensors" : "one tensor",
                           option, stored.fused ? "split" : "contiguous");
      const Glu fixed = fixed_glu(*naming_);
      if (is_gated && stored.fused && fixed.kind != Glu::Kind::Unknown && stored.glu != fixed)
        return fmt::format("programs expect {} in the {} experts and cannot see that it is {}", to_string(fixed), whose,
                           to_string(stored.glu));
      if (!is_shared && stored.bias_experts && *stored.bias_experts != stored.experts)
        return fmt::format("the biases of the experts are {}, their weights {}, and programs read both alike",
                           to_string(*stored.bias_experts), to_string(stored.experts));
    }
    return {};
  }

  /// A model of Hugging Face's form, of a family that is not mapped: what is outside of its experts is left as it was.
  bool is_of_unmapped_family() const {
    if (naming_ == nullptr || !model_.has_rest || !model_.has_config || model_.format == "torch-dist") return false;
    const auto types = {model_.model_type, model_.text_model_type};
    return std::ranges::none_of(types, [](const auto& type) { return find_family(type) != nullptr; }) &&
           std::ranges::any_of(types, [&](const auto& type) { return find_naming("hf:" + type) == naming_; });
  }

  LoadsIn find_unmapped() const {
    if (has_unknown_order()) return nothing_of_unknown_order();
    if (std::string text = foreign_form(); !text.empty()) return nothing("{}", text);
    return unknown("only the experts were looked at: {}", model_.no_architecture);
  }

  LoadsIn find_megatron() const {
    if (layout_.naming != "megatron-dist" || model_.format != "torch-dist")
      return nothing("Megatron-Core loads torch_dist checkpoints; --to megatron makes one");
    if (!layout_.is_dense() && layout_.experts != "grouped")
      return nothing("Megatron-Core's grouped experts are one tensor a layer; --experts grouped");
    if (std::string text = foreign_form(); !text.empty()) return nothing("{}", text);
    const Architecture& architecture = *model_.architecture;
    if (layout_.is_dense() && layout_.glu.kind == Glu::Kind::Interleaved && layout_.glu.block_rows != kFusedDenseRows)
      return nothing("Megatron-Core's fused dense MLP reads interleaved:{} alone, and this is {}", kFusedDenseRows,
                     to_string(layout_.glu));
    if (!architecture.family->needs.empty()) return nothing("{}", architecture.family->needs);
    std::string flags = megatron_flags();
    std::string versions = flags.empty() ? "0.16.1 or later" : "0.19 or later (0.16.1 does not know interleaved rows)";
    if (!flags.empty()) versions += without_fused();
    const bool latent = architecture.family->attention == Attention::Latent;
    if (!architecture.family->megatron_versions.empty()) versions = architecture.family->megatron_versions;
    if (latent && architecture.extent(Dim::QLora) == 0)
      versions = "0.16.1 to 0.18 (0.19 adds a norm of q that the model does not have)";
    if (model_.has_args) flags += std::string(flags.empty() ? "" : ", ") + "the arguments in megatron_args.txt";
    return {{{"Megatron-Core", versions, flags}}, {}};
  }

  LoadsIn find_torchtitan() const {
    if (model_.format != "torch-dist") return nothing("torchtitan loads torch.distributed.checkpoint directories");
    if (layout_.is_dense())
      return {{{"torchtitan", "0.3.0; its adapters were tried", "checkpoint.initial_load_path"}}, {}};
    if (!is_native(*naming_, ExpertSet::Routed, Experts::Grouped, false) || layout_.experts != "grouped" ||
        layout_.glu.kind != Glu::Kind::Split)
      return nothing("torchtitan's experts are grouped, gate and up apart");
    if (std::string text = foreign_form(); !text.empty()) return nothing("{}", text);
    return {{{"torchtitan", "0.3.0; its adapters were tried", "checkpoint.initial_load_path"}}, {}};
  }

  LoadsIn find_hf() const {
    if (model_.format == "torch-dist") return nothing("no program reads these keys from torch_dist; --to hf");
    if (!model_.has_config)
      return nothing("no config.json lies beside the tensors, and programs take the model from there");
    if (!spells_experts_of(*model_.architecture, layout_.naming))
      return nothing("the experts are named as in {}, the rest as in a model of type '{}'", layout_.naming,
                     model_.architecture->model_type);
    // Programs know a multimodal model by its own type, not by that of the language model inside.
    const Family& family = *model_.architecture->family;
    const std::string& type = model_.text_model_type.empty() ? model_.architecture->model_type : model_.model_type;
    const std::string_view inside = family.wrappers[0].model_type;
    if (type == family.model_type && family.model_class.empty() && !inside.empty())
      return nothing(
          "programs have no class for '{}' by itself, which is the language model inside of '{}'; --fill-from a "
          "checkpoint of that adds what sees and hears",
          type, inside);
    const bool is_tried = type == family.model_type
                              ? family.tried
                              : std::ranges::find(family.wrappers, type, &Wrapper::model_type) != family.wrappers.end();
    const std::string_view remark = is_tried ? "tried with 5.24.0" : "not tried";
    if (layout_.is_dense()) return find_hub_programs(type, false, remark);
    // transformers 5 loads layers of either form beside one another, as the hub has Qwen3.5 with its MTP.
    const bool mixed = layout_.experts == "mixed", grouped = mixed || layout_.experts == "grouped";
    const bool fused = layout_.glu.kind != Glu::Kind::Split && layout_.glu.kind != Glu::Kind::None;
    const Experts experts = grouped ? Experts::Grouped : Experts::Indexed;
    if (!mixed && !is_native(*naming_, ExpertSet::Routed, experts, fused))
      return nothing("models of type '{}' do not store experts {}, {}", model_.architecture->model_type,
                     layout_.experts, to_string(layout_.glu));
    if (fused && fixed_glu(*naming_) != layout_.glu)
      return nothing("programs expect {} under these names and cannot see that it is {}",
                     to_string(fixed_glu(*naming_)), to_string(layout_.glu));
    if (std::string text = foreign_form(); !text.empty()) return nothing("{}", text);
    const bool packed_anew = (grouped && !model_.architecture->family->packed_experts) || model_.in_memory;
    return find_hub_programs(type, packed_anew, remark);
  }

  /// `packed_anew`: the experts are one tensor, and the family's hub has them apart, or names are not the hub's;
  /// `remark` is about transformers.
  LoadsIn find_hub_programs(const std::string& type, bool packed_anew, std::string_view remark) const {
    const bool fuses_indexed =
        layout_.experts != "grouped" && layout_.glu.kind != Glu::Kind::Split && layout_.glu.kind != Glu::Kind::None;
    if (model_.quantized) return find_quantized_hf(type, packed_anew || fuses_indexed);
    if (packed_anew) return {{{"transformers", "5 or later", ""}}, {}};
    const std::string known = fmt::format("versions that have '{}'", type);
    return {{{"transformers", fmt::format("{} ({})", known, remark), ""},
             {"vLLM", known + " (not tried)", ""},
             {"SGLang", known + " (not tried)", ""}},
            {}};
  }

  /// `regrouped`: gate and up, or the experts, are one tensor, and the family's hub has them apart.
  LoadsIn find_quantized_hf(const std::string& type, bool regrouped) const {
    if (!model_.unread_form.empty()) return nothing("{}", model_.unread_form);
    if (regrouped)
      return nothing(
          "no program is known to read codes and scales of experts {}, {}; --experts indexed --glu split, or "
          "--decode bf16",
          layout_.experts, to_string(layout_.glu));
    const std::string known = fmt::format("versions that have '{}' and its quantization{} (not tried)", type,
                                          model_.quant_method.empty() ? "" : ", '" + model_.quant_method + "'");
    LoadsIn found;
    // transformers 5.24 reads what ModelOpt wrote only as far as other software unpacks it.
    if (model_.quant_method != "modelopt") found.loaders.push_back({"transformers", known, ""});
    found.loaders.push_back({"vLLM", known, ""});
    found.loaders.push_back({"SGLang", known, ""});
    return found;
  }

  const LayoutAnswers& layout_;
  const StoredModel& model_;
  const Naming* naming_;
};

}  // namespace

StoredExperts stored_as(const ExpertBlock& block) {
  const bool has_biases = std::ranges::find(block.matrices, TensorKind::Bias, &Matrix::kind) != block.matrices.end();
  return {block.set, block.experts, has_biases ? std::optional(block.bias_experts) : std::nullopt, block.fused,
          block.glu};
}

LoadsIn loads_in(const StoredModel& model) { return LoaderFinder(model).find(); }

}  // namespace glu_ckpt
