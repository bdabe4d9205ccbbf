#include "faults/fault_bench.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>

#include "glu_ckpt/error.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt::faults {
namespace {

constexpr i64 kHidden = 128, kWidth = 64, kExperts = 3;
/// Output sizes are such that some tensors go past the page cache and their edges do not.
constexpr i64 kNorm = 96;

struct Named {
  std::string name;
  std::vector<i64> shape;
  /// Stored as codes of FP8 with a scale in a tensor of its own.
  bool is_coded = false;
};

std::vector<Named> tensors_of_shard(int shard, bool coded) {
  std::vector<Named> tensors;
  if (shard == 0) {
    tensors.push_back({"model.embed_tokens.weight", {40, kHidden}});
    tensors.push_back({"model.layers.0.mlp.gate.weight", {kExperts, kHidden}});
  }
  for (i64 e = shard; e < kExperts; e += 2)
    for (const char* part : {"gate", "up", "down"}) {
      const bool down = std::strcmp(part, "down") == 0;
      tensors.push_back({fmt::format("model.layers.0.mlp.experts.{}.{}_proj.weight", e, part),
                         down ? std::vector<i64>{kHidden, kWidth} : std::vector<i64>{kWidth, kHidden}, coded});
    }
  if (shard == 1) tensors.push_back({"model.norm.weight", {kNorm}});
  return tensors;
}

u64 number_of(const std::string& name) {
  u64 number = 1469598103934665603u;
  for (const char letter : name) number = (number ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  return number;
}

std::string bytes_of(u64 value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

i64 elements_of(const Named& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), i64{1}, std::multiplies());
}

/// A power of two, so that decoding rounds nothing.
float scale_of(const Named& tensor) { return std::ldexp(1.0F, static_cast<int>(number_of(tensor.name) % 5) - 2); }

/// Every two bytes tell where they are, and every few codes; none is a NaN.
std::string content_of(const Named& tensor) {
  std::string bytes;
  const i64 elements = elements_of(tensor);
  u64 value = number_of(tensor.name);
  for (i64 i = 0; i < elements; ++i, ++value) {
    const u64 mixed = value * 0x9e3779b97f4a7c15u >> 56;
    bytes += tensor.is_coded ? bytes_of((mixed & 0x7f) == 0x7f ? 0 : mixed, 1) : bytes_of(value, 2);
  }
  return bytes;
}

/// E4M3: a sign, four bits of exponent with 7 as zero, three of mantissa.
float value_of(unsigned char code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

/// The bytes of the rows that the output has to have, one after another.
std::string written_content(const Named& tensor, const SourceAnswers& from) {
  std::string stored = content_of(tensor);
  std::string bytes;
  if (tensor.is_coded) {
    const float scale = scale_of(tensor);
    for (const char code : stored)
      bytes += bytes_of(std::bit_cast<u32>(value_of(static_cast<unsigned char>(code)) * scale) >> 16, 2);
    return bytes;
  }
  if (from.dtypes.empty()) return stored;
  for (std::size_t i = 0; i < stored.size(); i += 2) bytes.append(2, '\0').append(stored, i, 2);
  return bytes;
}

std::string shard_text(int shard, bool coded) {
  std::vector<std::string> entries;
  std::string data;
  const auto add = [&](const std::string& name, std::string_view dtype, const std::vector<i64>& shape,
                       const std::string& bytes) {
    const auto begin = data.size();
    data += bytes;
    entries.push_back(fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name, dtype,
                                  fmt::join(shape, ","), begin, data.size()));
  };
  for (const Named& tensor : tensors_of_shard(shard, coded)) {
    add(tensor.name, tensor.is_coded ? "F8_E4M3" : "BF16", tensor.shape, content_of(tensor));
    if (tensor.is_coded)
      add(tensor.name + "_scale_inv", "F32", {1, 1}, bytes_of(std::bit_cast<u32>(scale_of(tensor)), 4));
  }
  std::string header = fmt::format("{{{}}}", fmt::join(entries, ","));
  header.append((8 - header.size() % 8) % 8, ' ');
  return bytes_of(header.size(), 8) + header + data;
}

std::string shard_file(int shard) { return fmt::format("model-{:05}-of-00002.safetensors", shard + 1); }

/// Names only: what is in the files says nothing to a reader.
std::string difference(const Tree& found, const Tree& expected) {
  std::string text;
  for (const auto& [path, content] : found)
    if (!expected.contains(path))
      text += " more: " + path;
    else if (expected.at(path) != content)
      text += " differs: " + path;
  for (const auto& [path, content] : expected)
    if (!found.contains(path)) text += " lacks: " + path;
  return text;
}

}  // namespace

Tree make_source(bool coded, bool whole) {
  Tree source;
  std::vector<std::string> places;
  for (int shard = 0; shard < 2; ++shard) {
    source[shard_file(shard)] = shard_text(shard, coded);
    for (const Named& tensor : tensors_of_shard(shard, coded)) {
      places.push_back(fmt::format(R"("{}":"{}")", tensor.name, shard_file(shard)));
      if (tensor.is_coded) places.push_back(fmt::format(R"("{}_scale_inv":"{}")", tensor.name, shard_file(shard)));
    }
  }
  source["model.safetensors.index.json"] =
      fmt::format(R"({{"metadata":{{}},"weight_map":{{{}}}}})", fmt::join(places, ","));
  source["config.json"] =
      R"({"model_type":"qwen3_moe","num_experts":3,"hidden_size":128,"moe_intermediate_size":64,"num_hidden_layers":1})";
  if (whole)
    source["config.json"] = fmt::format(
        R"({{"model_type":"qwen3_moe","num_experts":3,"num_experts_per_tok":2,"hidden_size":128,)"
        R"("moe_intermediate_size":64,"intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":2,)"
        R"("num_key_value_heads":1,"head_dim":64,"vocab_size":40,"max_position_embeddings":128,"rms_norm_eps":1e-6,)"
        R"("rope_theta":1e4,"hidden_act":"silu"{}}})",
        coded ? R"(,"quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]})" : "");
  source["tokenizer.json"] = "{}";
  return source;
}

const std::vector<Target>& all_targets() {
  const auto options_of = [](const std::function<void(ConvertOptions&)>& change = {}) {
    ConvertOptions options;
    options.to.naming = "megatron";
    options.to.scope = Scope::Experts;
    options.to.experts = Experts::Grouped;
    options.to.glu = parse_glu("interleaved:32");
    if (change) change(options);
    return options;
  };
  constexpr i64 kSmallShard = 100 << 10;
  // Experts of both shards by themselves, so that one shard goes before the other is read.
  const auto consuming = [&](const std::function<void(ConvertOptions&)>& change = {}) {
    return options_of([&](ConvertOptions& options) {
      options.to.experts = Experts::Indexed;
      options.max_shard_bytes = kSmallShard;
      options.consume_source = true;
      if (change) change(options);
    });
  };
  static const std::vector<Target> kTargets = {
      {"Safetensors", "out", options_of([](auto& options) { options.max_shard_bytes = kSmallShard; })},
      {"SingleFile", "out.safetensors", options_of()},
      {"Torch", "out", options_of([](auto& options) { options.format = Format::Torch; })},
      {"TorchFile", "out.pt", options_of()},
      {"TorchDist", "out", options_of([](auto& options) {
         options.to.naming = "megatron-dist";
         options.to.scope = Scope::Experts;
         options.format = Format::TorchDist;
       })},
      {"Overwriting", "out", options_of([](auto& options) { options.overwrite = true; })},
      {"OverwritingFile", "out.safetensors", options_of([](auto& options) { options.overwrite = true; })},
      {.name = "OnAPlainFilesystem", .output = "out", .options = options_of(), .plain = true},
      {"Consuming", "out", consuming()},
      {"ConsumingToAFile", "out.safetensors", consuming([](auto& options) { options.max_shard_bytes = 0; })},
      {"ConsumingToTorchDist", "out", consuming([](auto& options) {
         options.to.naming = "megatron-dist";
         options.format = Format::TorchDist;
       })},
      {.name = "ConsumingCodes",
       .output = "out",
       .options = consuming([](auto& options) { options.from.decode = Dtype::BF16; }),
       .coded = true,
       .sampled = true},
      {.name = "ConsumingWidened",
       .output = "out",
       .options = consuming([](auto& options) { options.from.dtypes = "*=f32"; }),
       .sampled = true},
      {.name = "ConsumingPadded",
       .output = "out",
       .options = consuming([](auto& options) { options.from.pad_experts = 96; }),
       .sampled = true},
      {"InParts", "out", options_of([](auto& options) {
         options.max_shard_bytes = kSmallShard;
         options.part.of = 2;
       })},
      {"InPartsToTorchDist", "out", options_of([](auto& options) {
         options.to.naming = "megatron-dist";
         options.format = Format::TorchDist;
         options.part.of = 2;
       })},
      // Not proved: the sample is a thousand reads, of which each would fail once.
      {.name = "Cloned",
       .output = "out",
       .options = options_of([](auto& options) {
         options.reflink = Reflink::Always;
         options.max_shard_bytes = kSmallShard;
         options.proof = ProofMode::None;
       }),
       .clones = true},
  };
  return kTargets;
}

std::string name_of_target(const testing::TestParamInfo<Target>& info) { return info.param.name; }

const std::vector<CallKind>& all_kinds() {
  static const std::vector<CallKind> kKinds = {
      CallKind::Open,  CallKind::Close,         CallKind::Read,   CallKind::Write,   CallKind::Copy,
      CallKind::Clone, CallKind::Sync,          CallKind::Advise, CallKind::Reserve, CallKind::Resize,
      CallKind::Lock,  CallKind::Mode,          CallKind::Stat,   CallKind::Statfs,  CallKind::List,
      CallKind::Link,  CallKind::MakeDirectory, CallKind::Remove, CallKind::Rename};
  return kKinds;
}

FaultBench::FaultBench(const Target& target) : target_(target), source_(make_source(target.coded, target.sampled)) {
  if (target.options.consume_source) list_rows();
  begin();
  const Outcome outcome = convert();
  EXPECT_EQ(outcome.status, ExitStatus::Done) << outcome.message;
  calls_ = memory_->calls();
  for (const CallKind kind : all_kinds()) calls_of_[kind] = memory_->calls(kind);
  EXPECT_EQ(memory_->open_descriptors(), 0);
  // More than there are runs: the pages in between are shared, too.
  EXPECT_EQ(calls_of_[CallKind::Clone] > kExperts * 2 * kWidth / 32 + 1, target_.clones);
  expected_ = tree("/disk");
  if (target_.options.consume_source) expect_source_consumed();
  if (target_.options.consume_source || target_.options.part.of > 0) expect_same_when_plain();
  for (const auto& [path, content] : expected_) EXPECT_EQ(path.find("partial"), path.npos) << path;
  EXPECT_EQ(expected_.count(target_.output + "/" + std::string(StagedDir::kJournalName)), 0u);
  for (const auto& [path, content] : expected_)
    EXPECT_EQ(content.find("journal"), content.npos) << path << " speaks of a journal";
  if (!target_.clones) return;
  begin();
  memory_->allow_clone(false);
  EXPECT_EQ(convert().status, ExitStatus::MachineFailed);
  EXPECT_EQ(difference(tree("/disk"), {}), "") << "--reflink always without clones has written something";
}

void FaultBench::begin() {
  memory_ = std::make_unique<MemorySystem>();
  memory_->allow_direct(!target_.plain);
  memory_->allow_reserve(!target_.plain);
  memory_->allow_lock(!target_.plain);
  memory_->allow_clone(target_.clones);
  memory_->allow_rename_flags(!target_.plain);
  for (const auto& [path, content] : source_) memory_->put("/src/" + path, content);
  const bool file = target_.output.find('.') != target_.output.npos;
  if (target_.options.overwrite)
    memory_->put("/disk/" + target_.output + (file ? "" : "/model.safetensors"), "an older one");
  if (!target_.options.overwrite) {
    const SystemCallsScope scope(*memory_);
    (void)memory_->mkdir("/disk", 0755);
    memory_->crash(Crash::KeepAll);
  }
  memory_->reset();
}

Outcome FaultBench::convert(bool resume) {
  const i64 parts = target_.options.part.of;
  if (parts == 0) return convert_part(resume, 0);
  // One after the other: whatever befalls one, the next is not started.
  for (i64 part = 1; part < parts; ++part)
    if (Outcome outcome = convert_part(false, part); outcome.status != ExitStatus::Done) return outcome;
  return convert_part(false, parts);
}

Outcome FaultBench::convert_part(bool resume, i64 part) {
  ConvertOptions options = target_.options;
  options.resume = resume;
  options.part.number = part;
  // Small buffers, so that each tensor takes several ranges.
  RunOptions run;
  run.memory_bytes = i64{1} << 20;
  run.jobs = 2;
  run.device = "cpu";
  const SystemCallsScope scope(*memory_);
  try {
    (void)glu_ckpt::convert("/src", "/disk/" + target_.output, options, run);
    return {};
  } catch (const Error& error) {
    return {exit_status(error.code()), std::string(slug(error.code())), error.what()};
  } catch (const std::bad_alloc& error) {
    return {ExitStatus::MachineFailed, "no-memory", error.what()};
  }
}

void FaultBench::list_rows() {
  for (int shard = 0; shard < 2; ++shard)
    for (const Named& tensor : tensors_of_shard(shard, target_.coded)) {
      const std::string bytes = written_content(tensor, target_.options.from);
      const auto row = bytes.size() / static_cast<std::size_t>(elements_of(tensor) / tensor.shape.back());
      for (std::size_t at = 0; at < bytes.size(); at += row)
        rows_[shard_file(shard)].push_back({tensor.name, bytes.substr(at, row)});
    }
}

Tree FaultBench::tree(const std::string& path) const {
  Tree found;
  for (const std::string& name : memory_->tree(path))
    found[name] = memory_->get(fmt::format("{}/{}", path, name)).value_or("");
  return found;
}

bool FaultBench::has_output() const {
  // What was there before is no output.
  const bool old =
      target_.options.overwrite && (memory_->get("/disk/" + target_.output) == "an older one" ||
                                    memory_->get("/disk/" + target_.output + "/model.safetensors") == "an older one");
  return !old && (is_there(target_.output) || is_there(target_.output + "/"));
}

bool FaultBench::has_staging() const { return is_there(target_.output + ".partial/"); }

bool FaultBench::is_there(const std::string& name) const {
  const auto names = memory_->tree("/disk");
  return std::ranges::find(names, name) != names.end();
}

bool FaultBench::has_whole_source() const {
  const Tree found = tree("/src");
  return std::ranges::all_of(source_, [&](const auto& file) {
    const auto at = found.find(file.first);
    return at != found.end() && at->second == file.second;
  });
}

void FaultBench::expect_source_consumed() const {
  Tree rest = source_;
  std::erase_if(rest, [](const auto& file) { return file.first.ends_with(".safetensors"); });
  EXPECT_EQ(difference(tree("/src"), rest), "") << "other files than those of tensors are left";
}

void FaultBench::expect_same_when_plain() {
  begin();
  const ConvertOptions options = target_.options;
  target_.options.consume_source = false;
  target_.options.part = {};
  EXPECT_EQ(convert().status, ExitStatus::Done);
  target_.options = options;
  EXPECT_EQ(difference(tree("/disk"), expected_), "") << "other bytes than without --consume-source or --part";
}

void FaultBench::expect_source_is_there() const {
  if (!target_.options.consume_source) {
    EXPECT_EQ(difference(tree("/src"), source_), "");
    return;
  }
  const Tree found = tree("/src");
  std::string written;
  for (const auto& [path, content] : tree("/disk")) written += content;
  for (const auto& [path, content] : source_) {
    if (found.contains(path)) {
      EXPECT_EQ(found.at(path) == content, true) << path << " was changed";
      continue;
    }
    ASSERT_TRUE(path.ends_with(".safetensors")) << path << " was removed";
    ASSERT_TRUE(rows_.contains(path)) << path;
    for (const auto& [tensor, row] : rows_.at(path))
      ASSERT_NE(::memmem(written.data(), written.size(), row.data(), row.size()), nullptr)
          << path << " was removed, and a row of " << tensor << " is nowhere else";
  }
}

void FaultBench::expect_nothing_lost() const {
  expect_source_is_there();
  const Tree found = tree("/disk");
  const std::string staging = target_.output + ".partial/";
  const std::string journal = std::string(StagedDir::kJournalName);
  Tree output;
  bool has_others = false;
  for (const auto& [path, content] : found) {
    const bool staged = path.starts_with(staging);
    has_others |= staged && path != staging && !path.starts_with(staging + journal);
    if (!staged && !path.starts_with(target_.output + "/" + journal)) output.insert({path, content});
  }
  if (has_output()) {
    EXPECT_EQ(difference(output, expected_), "") << "the output is there, but it is not whole";
  } else if (!target_.options.overwrite) {
    EXPECT_EQ(difference(output, {}), "") << "neither an output nor work in progress";
  }
  // What was replaced has the staging directory's name for a moment; the output's journal tells.
  const bool replaced = has_output() && target_.options.overwrite && found.contains(target_.output + "/" + journal);
  if (has_others && !replaced) {
    EXPECT_TRUE(found.contains(staging + journal)) << "work in progress without a journal";
  }
}

void FaultBench::expect_resumes() {
  const Outcome outcome = convert(true);
  EXPECT_EQ(outcome.status, ExitStatus::Done) << outcome.slug << ": " << outcome.message;
  EXPECT_EQ(difference(tree("/disk"), expected_), "") << "resumed to other bytes";
  if (target_.options.consume_source)
    expect_source_consumed();
  else
    expect_source_is_there();
  EXPECT_EQ(memory_->open_descriptors(), 0);
}

}  // namespace glu_ckpt::faults
