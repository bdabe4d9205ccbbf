#include "model/locate_errors.hpp"

#include <algorithm>
#include <optional>

#include "arch/recognize_model.hpp"
#include "core/fail.hpp"
#include "io/directory.hpp"
#include "layout/element_grid.hpp"
#include "model/source_hints.hpp"
#include "model/stored_model.hpp"
#include "quant/decoded_source.hpp"
#include "quant/find_quantized.hpp"

namespace glu_ckpt {
namespace {

/// The file of the source that holds the tensor.
std::filesystem::path file_of(const Source& source, const TensorRef& tensor) {
  if (!is_directory_at(source.path())) return source.path();
  return source.path() / source.structure().iteration_dir / source.inventory().files.at(tensor.file);
}

/// Codes and scales are what many a refusal is about that says nothing of them.
std::string decode_hint(const Error& error, const Source& source) {
  constexpr ErrorCode kOfLayouts[] = {ErrorCode::NotSupported,   ErrorCode::ExpertMissing, ErrorCode::ExpertShape,
                                      ErrorCode::UnexplainedKey, ErrorCode::ModelShape,    ErrorCode::ModelIncomplete,
                                      ErrorCode::NotDivisible,   ErrorCode::NoExperts,     ErrorCode::NotExact,
                                      ErrorCode::NoSpelling,     ErrorCode::NoMap,         ErrorCode::UnknownTensor,
                                      ErrorCode::AlreadyInLayout};
  if (std::ranges::find(kOfLayouts, error.code()) == std::end(kOfLayouts)) return {};
  // A record says as what it was encoded, too, but then nothing is recast.
  if (source.record().contains("encoded_as") && source.info().recast_tensors > 0)
    return error.code() == ErrorCode::NotSupported ? ". --encode makes these codes; without it they are weights"
                                                   : std::string();
  const std::string method = read_quant_config(source.hints().config).method;
  try {
    const Quantization found = find_quantized(source.inventory(), quant_config_of(source, source.hints()));
    // Decoding gives the weights other shapes, and some keys fewer.
    if (error.code() == ErrorCode::UnexplainedKey)
      (void)recognize_model(decoded_inventory(source.inventory(), found, Dtype::BF16), source.hints(), source.record(),
                            {});
    if (found.undecodable) return fmt::format(". '{}': {}", found.undecodable->tensor, found.undecodable->why);
  } catch (const Error& fault) {
    // An option that refuses next is no way on.
    const std::string_view why = fault.what();
    return std::string_view(error.what()).find(why) == std::string_view::npos ? fmt::format(". {}", why)
                                                                              : std::string();
  }
  const bool is_said = std::string_view(error.what()).find("--decode bf16") != std::string_view::npos;
  if (is_said || method.empty() || !holds_any_codes(source.inventory())) return {};
  return fmt::format(". Its weights are quantized ('{}' in quantization_config): --decode bf16 reads them as bf16",
                     method);
}

/// If one shard of a model was given, the tensors that an error misses are in the other shards: returns that hint.
std::string shard_hint(const Error& error, const Source& source) {
  constexpr ErrorCode kOfParts[] = {ErrorCode::ModelShape, ErrorCode::ModelIncomplete, ErrorCode::LayerMissing,
                                    ErrorCode::ExpertMissing};
  const std::string text = lone_shard_text(source);
  const bool is_of_parts = std::ranges::find(kOfParts, error.code()) != std::end(kOfParts);
  return is_of_parts && !text.empty() ? ". " + text : std::string();
}

}  // namespace

void fail_located(const Error& error, const Source& source, bool decoding) {
  const ExitStatus status = exit_status(error.code());
  if (!error.missing_options().empty() && error.file().empty() && error.tensor().empty())
    throw Error(error.code(), source.path().string() + ": " + error.what(), source.path().string())
        .with_missing_options(error.missing_options());
  if (!error.file().empty() || (status != ExitStatus::BrokenInput && status != ExitStatus::Refused)) throw error;
  const std::string hint = shard_hint(error, source) + (decoding ? std::string() : decode_hint(error, source));
  const auto& tensors = source.inventory().tensors;
  const auto named = std::ranges::find(tensors, error.tensor(), &TensorRef::name);
  try {
    if (error.tensor().empty() || named == tensors.end())
      fail_at(error.code(), {source.path().string(), std::nullopt, error.tensor()}, "{}{}", error.what(), hint);
    // A sound tensor that cannot be converted has no byte at fault.
    const auto offset = status == ExitStatus::BrokenInput ? std::optional(named->offset) : std::nullopt;
    fail_at(error.code(), {file_of(source, *named).string(), offset, error.tensor()}, "{}{}", error.what(), hint);
  } catch (const Error& located) {
    throw located.with_missing_options(error.missing_options());
  }
}

}  // namespace glu_ckpt
