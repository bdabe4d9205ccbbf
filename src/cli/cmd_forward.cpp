#include <fmt/format.h>

#include "cli/session.hpp"
#include "core/json.hpp"
#include "glu_ckpt/forward.hpp"

namespace glu_ckpt::cli {
namespace {

std::string report(const Options& options, const ForwardWritten& y) {
  const auto activation = to_string(y.activation.kind);
  if (!options.json)
    return fmt::format("layer {}: {} experts, {}: y {} {}\n", y.layer, y.num_experts, activation, dtype_name(y.dtype),
                       shape_text(y.shape));
  return JsonWriter()
             .begin_object()
             .field("output", options.forward.output.string())
             .field("layer", y.layer)
             .field("num_experts", y.num_experts)
             .field("tokens", y.shape[0])
             .field("activation", activation)
             .field("alpha", static_cast<double>(y.activation.alpha))
             .field("limit", static_cast<double>(y.activation.limit))
             .field("offset", static_cast<double>(y.activation.offset))
             .field("dtype", dtype_name(y.dtype))
             .field("device", y.device)
             .end_object()
             .text() +
         "\n";
}

}  // namespace

ExitStatus cmd_forward(const Options& options) {
  const ForwardWritten y = forward(options.forward, Session(options).run());
  if (!options.quiet || options.json) print_out(options, report(options, y));
  return ExitStatus::Done;
}

}  // namespace glu_ckpt::cli
