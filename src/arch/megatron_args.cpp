#include "arch/megatron_args.hpp"

namespace glu_ckpt {

MegatronArgs megatron_args(const std::string& config, const Recognition& model, const GluOrders& to) {
  ArgsWriter args(config, model, to);
  const Family& family = args.family();
  for (const std::span<const ArgRow> rows : family.args)
    for (const ArgRow& row : rows)
      if (row.to_argument != nullptr) row.to_argument(args, row);
  if (!family.needs.empty())
    args.warn("models of type '{}' do not load into GPTModel as it is: {}", family.model_type, family.needs);
  return std::move(args.written);
}

}  // namespace glu_ckpt
