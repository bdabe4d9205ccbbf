#include "arch/loads_in.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "arch/dense_table.hpp"
#include "layout/layout_table.hpp"

namespace glu_ckpt {
namespace {

/// Types of which the tests have no model (tests/interop/tiny_models.py).
constexpr auto kUntried = std::to_array<std::string_view>({"kimi_k2"});

class LoaderFinder {
 public:
  explicit LoaderFinder(const StoredModel& model)
      : layout_(model.layout), model_(model), naming_(find_naming(model.layout.naming)) {}

  LoadsIn find() const {
    if (model_.architecture == nullptr) return nothing("{}{}", model_.no_architecture, of_a_run());
    if (naming_ == nullptr || model_.rest.empty()) return nothing("{}", model_.why_no_rest);
    if (layout_.glu.kind == Glu::Kind::Unknown)
      return nothing("nobody knows in which order FC1 holds gate and up; --from-glu or `stamp` says it");
    if (layout_.naming.substr(0, model_.rest.size()) != model_.rest)
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

  /// A checkpoint that Megatron saved, of which no file says what model it is.
  std::string of_a_run() const {
    const bool known = layout_.glu.kind == Glu::Kind::Contiguous || layout_.glu.kind == Glu::Kind::Interleaved;
    const bool shared_known = !layout_.shared_glu || layout_.shared_glu->kind != Glu::Kind::Unknown;
    if (layout_.naming != "megatron-dist" || model_.format != "torch-dist" || !known || !shared_known) return {};
    const std::string flags = megatron_flags();
    return "; the run that it is of takes it with its own arguments and " +
           (flags.empty() ? "no moe_mlp_glu_interleave_size" : flags);
  }

  /// Returns the arguments that say the order of gate and up; empty where both are contiguous.
  std::string megatron_flags() const {
    std::string flags;
    const auto add = [&](std::string_view name, const Glu& glu) {
      if (glu.kind == Glu::Kind::Interleaved)
        flags += fmt::format("{}{}={}", flags.empty() ? "" : ", ", name, glu.block_rows);
    };
    add("moe_mlp_glu_interleave_size", layout_.glu);
    if (layout_.shared_glu) add("moe_shared_expert_glu_interleave_size", *layout_.shared_glu);
    return flags;
  }

  bool is(std::string_view model_type) const { return model_.architecture->model_type == model_type; }

  LoadsIn find_megatron() const {
    if (layout_.naming != "megatron-dist" || model_.format != "torch-dist")
      return nothing("Megatron-Core loads torch_dist checkpoints; --to megatron makes one");
    if (layout_.experts != "grouped")
      return nothing("Megatron-Core's grouped experts are one tensor a layer; --experts grouped");
    const Architecture& architecture = *model_.architecture;
    if (!architecture.family->needs.empty()) return nothing("{}", architecture.family->needs);
    std::string flags = megatron_flags();
    std::string versions = flags.empty() ? "0.16 or later" : "0.19 or later (0.16 does not know interleaved rows)";
    const bool latent = architecture.family->attention == Attention::Latent;
    if (is("gpt_oss")) versions = "0.19 or later (its arguments; 0.16 by a configuration in Python)";
    if (latent && architecture.extent(Dim::QLora) == 0)
      versions = "0.16 to 0.18 (0.19 adds a norm of q that the model does not have)";
    if (model_.has_args) flags += std::string(flags.empty() ? "" : ", ") + "the arguments in megatron_args.txt";
    return {{{"Megatron-Core", versions, flags}}, {}};
  }

  LoadsIn find_torchtitan() const {
    if (model_.format != "torch-dist") return nothing("torchtitan loads torch.distributed.checkpoint directories");
    if (!is_native(*naming_, ExpertSet::Routed, Experts::Grouped, false) || layout_.experts != "grouped" ||
        layout_.glu.kind != Glu::Kind::Split)
      return nothing("torchtitan's experts are grouped, gate and up apart");
    return {{{"torchtitan", "0.3.0; its adapters were tried", titan_flags()}}, {}};
  }

  /// torchtitan keeps a bias of the router in every MoE model, unless it is told to do without; a checkpoint of a
  /// family that has none lacks the key.
  std::string titan_flags() const {
    const bool has_bias = is("deepseek_v3") || is("kimi_k2") || is("glm4_moe_lite");
    return has_bias ? "checkpoint.initial_load_path" : "checkpoint.initial_load_path, load_balance_coeff=None";
  }

  LoadsIn find_hf() const {
    if (model_.format == "torch-dist") return nothing("no program reads these keys from torch_dist; --to hf");
    if (!model_.has_config)
      return nothing("no config.json lies beside the tensors, and programs take the model from there");
    if (!spells_experts_of(*model_.architecture, layout_.naming))
      return nothing("the experts are named as in {}, the rest as in a model of type '{}'", layout_.naming,
                     model_.architecture->model_type);
    const bool grouped = layout_.experts == "grouped";
    const bool fused = layout_.glu.kind != Glu::Kind::Split;
    const Experts experts = grouped ? Experts::Grouped : Experts::Indexed;
    if (layout_.experts == "mixed" || !is_native(*naming_, ExpertSet::Routed, experts, fused))
      return nothing("models of type '{}' do not store experts {}, {}", model_.architecture->model_type,
                     layout_.experts, to_string(layout_.glu));
    if (fused && fixed_glu(*naming_) != layout_.glu)
      return nothing("programs expect {} under these names and cannot see that it is {}",
                     to_string(fixed_glu(*naming_)), to_string(layout_.glu));
    const bool packed_anew = grouped && !model_.architecture->family->packed_experts;
    if (model_.quantized) return find_quantized_hf(packed_anew || (!grouped && fused));
    if (packed_anew) return {{{"transformers", "5 or later", ""}}, {}};
    const std::string& type = model_.architecture->model_type;
    const std::string known = fmt::format("versions that have '{}'", type);
    const bool is_tried = std::ranges::find(kUntried, type) == kUntried.end();
    const std::string tried = is_tried ? " (tried with 5.23.0)" : " (not tried)";
    return {{{"transformers", known + tried, ""},
             {"vLLM", known + " (not tried)", ""},
             {"SGLang", known + " (not tried)", ""}},
            {}};
  }

  /// `regrouped`: gate and up, or the experts, are one tensor, and the family's hub has them apart.
  LoadsIn find_quantized_hf(bool regrouped) const {
    if (model_.mxfp8_blocks)
      return nothing(
          "no program reads gpt-oss's blocks as MXFP8; --decode "
          "bf16 reads them");
    if (regrouped)
      return nothing(
          "no program is known to read codes and scales of experts {}, {}; --experts indexed --glu split, or "
          "--decode bf16",
          layout_.experts, to_string(layout_.glu));
    const std::string known =
        fmt::format("versions that have '{}' and its quantization{} (not tried)", model_.architecture->model_type,
                    model_.quant_method.empty() ? "" : ", '" + model_.quant_method + "'");
    LoadsIn found;
    // transformers 5.23 reads what ModelOpt wrote only as far as other software unpacks it.
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

LoadsIn loads_in(const StoredModel& model) { return LoaderFinder(model).find(); }

}  // namespace glu_ckpt
