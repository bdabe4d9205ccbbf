#include "cli/option_texts.hpp"

#include <tuple>

#include "cli/find_input.hpp"
#include "cli/option_values.hpp"
#include "core/fail.hpp"
#include "core/usable_cores.hpp"

namespace glu_ckpt::cli {
namespace {

void answer(const std::string& text, std::optional<Glu>& glu) {
  if (!text.empty() && text != "keep") glu = parse_glu(text);
}

void answer_naming(const std::string& text, std::optional<std::string>& naming) {
  if (text.empty() || text == "keep") return;
  if (find_naming(text) == nullptr) {
    const std::string near = suggestion(text, plain(naming_words()));
    fail(ErrorCode::UnknownNaming, {}, "'{}' is not a naming{} `glu-ckpt layouts` lists them", text,
         near.empty() ? ";" : near);
  }
  naming = text;
}

}  // namespace

void interpret(const OptionTexts& texts, ExpertCompute compute, Options& options) {
  answer_naming(texts.naming, options.convert.to.naming);
  if (!texts.experts.empty() && texts.experts != "keep") options.convert.to.experts = parse_experts(texts.experts);
  if (!texts.bias_experts.empty() && texts.bias_experts != "keep")
    options.convert.to.bias_experts = parse_experts(texts.bias_experts);
  answer(texts.glu, options.convert.to.glu);
  answer(texts.shared_glu, options.convert.to.shared_glu);
  answer_naming(texts.from_naming, options.from.naming);
  answer(texts.from_glu, options.from.glu);
  answer(texts.from_shared_glu, options.from.shared_glu);
  answer(texts.from_optimizer_glu, options.from.optimizer_glu);
  if (!texts.decode.empty()) options.from.decode = texts.decode == "bf16" ? Dtype::BF16 : Dtype::F32;
  options.verify.b.decode = options.from.decode;
  options.verify.b.decode_as = options.from.decode_as;
  options.from.encode_mxfp8 = !texts.encode.empty();
  options.verify.b.encode_mxfp8 = options.from.encode_mxfp8;
  if (options.from.decode && options.from.encode_mxfp8)
    fail(ErrorCode::Usage, {}, "--decode and --encode are two answers to one question: give one of them");
  options.from.drop_optimizer = texts.optimizer == "drop";
  if (!texts.target.empty()) options.convert.target = texts.target;
  if (options.command != Command::Layouts && options.command != Command::Doctor)
    options.input = find_input(options.input);
  if (options.command == Command::Forward) options.forward.checkpoint = find_input(options.forward.checkpoint.string());
  for (std::string& path : options.paths) path = find_input(path);
  if (options.command == Command::Verify || options.command == Command::Diff ||
      (options.command == Command::Report && !options.output.empty()))
    options.output = find_input(options.output);
  if (options.report.forward && options.output.empty())
    fail(ErrorCode::Usage, {}, "--forward compares what the experts of A and of B compute; name B, too");
  if (texts.scope == "experts") options.convert.to.scope = Scope::Experts;
  options.convert.to.keep_unknown = texts.unknown == "keep";
  answer_naming(texts.to_naming, options.verify.b.naming);
  answer(texts.to_glu, options.verify.b.glu);
  answer(texts.to_shared_glu, options.verify.b.shared_glu);
  answer(texts.to_optimizer_glu, options.verify.b.optimizer_glu);
  if (!texts.max_shard.empty()) options.convert.max_shard_bytes = parse_size("--max-shard-size", texts.max_shard);
  if (!texts.max_memory.empty()) options.run.memory_bytes = parse_size("--max-memory", texts.max_memory);
  if (!texts.device_memory.empty())
    options.run.device_memory_bytes = parse_size("--device-memory", texts.device_memory);
  if (!texts.bench_size.empty()) options.bench.size_bytes = parse_size("--size", texts.bench_size);
  if (options.bench.size_bytes < 1) fail(ErrorCode::Usage, {}, "--size must be at least 1 byte");
  constexpr i64 kLeastMemory = i64{1} << 20;
  if (options.run.memory_bytes < kLeastMemory) fail(ErrorCode::Usage, {}, "--max-memory must be at least 1MiB");
  if (options.run.device_memory_bytes < kLeastMemory)
    fail(ErrorCode::Usage, {}, "--device-memory must be at least 1MiB");
  if (options.convert.max_shard_bytes < 1) fail(ErrorCode::Usage, {}, "--max-shard-size must be at least 1 byte");
  if (!texts.sample.empty()) options.verify.subset.percent = parse_percent(texts.sample);
  if (!texts.part.empty()) std::tie(options.verify.subset.part, options.verify.subset.parts) = parse_part(texts.part);
  if (texts.has_seed && !options.verify.forward && texts.sample.empty())
    fail(ErrorCode::Usage, {}, "--seed is that of --forward's tokens or of --sample; give one of them");
  options.list_tensors = texts.has_tensors;
  if (options.run.jobs == 0) options.run.jobs = usable_cores();
  options.convert.proof = texts.verify == "none"      ? ProofMode::None
                          : texts.verify == "digest"  ? ProofMode::Digest
                          : texts.verify == "forward" ? ProofMode::Forward
                                                      : ProofMode::Readback;
  options.convert.reflink = texts.reflink == "always"  ? Reflink::Always
                            : texts.reflink == "never" ? Reflink::Never
                                                       : Reflink::Auto;
  options.progress = texts.progress == "always"  ? ProgressMode::Always
                     : texts.progress == "never" ? ProgressMode::Never
                     : texts.progress == "json"  ? ProgressMode::Json
                                                 : ProgressMode::Auto;
  for (const Format format : {Format::Safetensors, Format::Torch, Format::TorchDist})
    if (texts.format == to_string(format)) options.convert.format = format;
  if (!texts.activation.empty()) compute.activation.kind = parse_activation(texts.activation);
  compute.fp32 = texts.compute == "fp32";
  if (options.dry_run) options.command = Command::Plan;
  options.convert.from = options.verify.a = options.diff.a = options.forward.from = options.from;
  options.report.a = options.from;
  options.report.tensors = options.diff.tensors;
  options.report.b = options.diff.b = options.verify.b;
  options.convert.compute = options.verify.compute = options.forward.compute = compute;
  options.report.compute = compute;
  options.convert.seed = options.verify.subset.seed;
}

}  // namespace glu_ckpt::cli
